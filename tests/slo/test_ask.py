"""What is asked of a server and what it says, where nobody says more."""

from __future__ import annotations

from pagewire.slo.load.ask import Ask, AskFailed, Part


def test_a_failure_has_a_name_to_be_counted_by_and_tells_people_more() -> None:
    error = AskFailed("timeout", "nothing came for 5 s")
    assert (error.name, error.detail, str(error)) == (
        "timeout",
        "nothing came for 5 s",
        "timeout: nothing came for 5 s",
    )


def test_a_request_is_of_the_served_model_and_no_priority_unless_told() -> None:
    asked = Ask(prompt="a", max_tokens=1, request_id="r")
    assert (asked.model, asked.priority) == ("", 0)


def test_a_part_is_none_of_the_answer_unless_it_has_a_token() -> None:
    head = Part(at_s=1.0)
    assert (head.has_token, head.text, head.token_ids, head.usage, head.timelines) == (False, "", (), None, ())
