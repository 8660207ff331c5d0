"""The sans-I/O core: retries end with the first chunk, stay within budget and deadline, and obey RetryInfo."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.client.attempts import Attempts
from pagewire.client.codec import request_to_wire
from pagewire.client.generation import Generation
from pagewire.client.options import Options
from pagewire.client.results import Message
from pagewire.client.retry import RetryBudget, RetryPolicy
from pagewire.client.routers import Routers
from pagewire.core.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    PagewireError,
    RouterLost,
    Unauthenticated,
    Unavailable,
    UnknownModel,
)
from pagewire.core.sampling import FinishReason
from pagewire.protos import inference_pb2
from pagewire.serving.rich_status import rich_status

Metadata = tuple[tuple[str, str | bytes], ...]


def details(error: PagewireError, request_id: str = "r1") -> Metadata:
    """What a router's trailing metadata hold for `error`."""
    return (("grpc-status-details-bin", rich_status(error, request_id).SerializeToString()),)


def generation(
    *,
    total_s: float = 60.0,
    policy: RetryPolicy | None = None,
    budget: RetryBudget | None = None,
    num_routers: int = 1,
    resumes: bool = True,
) -> Generation:
    return Generation(
        request_to_wire("hello", {"request_id": "mine"}),
        Attempts(
            timeout_s=total_s,
            policy=policy or RetryPolicy(),
            budget=budget or RetryBudget(),
            routers=Routers(num_routers),
            now_s=100.0,
        ),
        resumes=resumes,
    )


def chunk(text: str, *token_ids: int) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(request_id="r1", chunk=inference_pb2.Chunk(text=text, token_ids=token_ids))


def complete(reason: str = "stop") -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        request_id="r1",
        complete=inference_pb2.Complete(
            endings=[inference_pb2.Ending(finish_reason=reason, stop_text="END")],
            usage=inference_pb2.Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4),
            timelines=[
                inference_pb2.Timeline(
                    process="router",
                    stamps=[
                        inference_pb2.Stamp(phase="received", at_s=1.0),
                        inference_pb2.Stamp(phase="first_token", at_s=3.0),
                        inference_pb2.Stamp(phase="of_a_newer_server", at_s=3.0),
                    ],
                )
            ],
            transfer=inference_pb2.Transfer(placement="remote", blocks_shipped=3, exposed_s=0.5),
        ),
    )


def test_a_finished_stream_becomes_a_result() -> None:
    life = generation()
    assert life.begin(100.0) == (0, 60.0)
    assert life.on_response(chunk("Pa", 1)) is not None
    assert life.on_response(chunk("ris", 2)) is not None
    assert life.on_response(complete()) is None
    result = life.result()
    assert (result.request_id, result.text, result.token_ids) == ("r1", "Paris", (1, 2))
    assert (result.finish_reason, result.stop) == (FinishReason.STOP, "END")
    assert (result.usage.total_tokens, result.usage.cached_tokens) == (7, 4)
    assert [stamp.phase.value for stamp in result.timelines[0].stamps] == ["received", "first_token"]
    assert result.transfer is not None
    assert (result.transfer.placement, result.transfer.blocks_shipped, result.transfer.exposed_s) == ("remote", 3, 0.5)


def test_a_retryable_error_before_the_first_chunk_is_tried_again_after_a_growing_pause() -> None:
    life = generation(policy=RetryPolicy(max_attempts=4, first_backoff_s=0.1, multiplier=2.0, max_backoff_s=0.3))
    pauses = []
    for _ in range(3):
        life.begin(100.0)
        pauses.append(life.on_error("UNAVAILABLE", "gone", (), now_s=100.0, draw=0.5))
    assert pauses == pytest.approx([0.05, 0.1, 0.15])
    life.begin(100.0)
    with pytest.raises(Unavailable, match="gone"):
        life.on_error("UNAVAILABLE", "gone", (), now_s=100.0, draw=0.5)


def test_the_server_says_how_long_to_wait_at_least() -> None:
    life = generation()
    life.begin(100.0)
    error = Overloaded("full", retry_after_s=7.0)
    assert life.on_error("RESOURCE_EXHAUSTED", "full", details(error), now_s=100.0, draw=0.9) == 7.0


def test_nothing_is_tried_again_after_a_chunk() -> None:
    life = generation()
    life.begin(100.0)
    life.on_response(chunk("Pa", 1))
    with pytest.raises(Unavailable) as caught:
        life.on_error("UNAVAILABLE", "gone", details(Unavailable("gone")), now_s=100.0, draw=0.5)
    assert caught.value.request_id == "r1"


def test_what_is_sent_stays_as_it_was_asked_for() -> None:
    request = request_to_wire("hello", {"request_id": "mine"})
    attempts = Attempts(timeout_s=60.0, policy=RetryPolicy(), budget=RetryBudget(), routers=Routers(1), now_s=100.0)
    life = Generation(request, attempts, metadata=(("traceparent", "00"),))
    assert (life.method, life.request, life.metadata) == ("Generate", request, (("traceparent", "00"),))
    assert generation().metadata == ()


def test_a_request_keeps_its_id_until_a_router_names_it() -> None:
    life = generation()
    life.begin(100.0)
    life.on_response(inference_pb2.GenerateResponse(chunk=inference_pb2.Chunk(text="Pa", token_ids=[1])))
    assert life.request_id == "mine"
    life.on_response(chunk("ris", 2))
    assert life.request_id == "r1"


def test_an_answer_is_finished_with_its_last_message_and_is_not_asked_for_again() -> None:
    life = generation()
    life.begin(100.0)
    assert life.is_finished is False
    assert life.on_response(complete()) is None
    assert life.is_finished is True
    with pytest.raises(Overloaded):
        life.on_error("RESOURCE_EXHAUSTED", "full", (), now_s=100.0, draw=0.5)


def test_a_router_that_breaks_off_what_cannot_be_resumed_is_left_by_the_next_call() -> None:
    routers = Routers(2)
    attempts = Attempts(timeout_s=60.0, policy=RetryPolicy(), budget=RetryBudget(), routers=routers, now_s=100.0)
    life = Generation(request_to_wire("hello", {}), attempts, resumes=False)
    life.begin(100.0)
    life.on_response(chunk("Pa", 1))
    with pytest.raises(RouterLost):
        life.on_error("UNAVAILABLE", "gone", (), now_s=102.0, draw=0.5)
    assert routers.choose(102.0) == 1
    assert (routers.has_other(106.0, avoid=[1]), routers.has_other(107.0, avoid=[1])) == (False, True)


def test_a_lost_router_ends_a_begun_answer_where_it_must_not_resume() -> None:
    life = generation(resumes=False, num_routers=2)
    life.begin(100.0)
    life.on_response(chunk("Pa", 1))
    with pytest.raises(RouterLost):
        life.on_error("UNAVAILABLE", "gone", (), now_s=100.0, draw=0.5)


def test_a_lost_router_is_left_at_once_and_an_overloaded_one_is_not() -> None:
    life = generation(num_routers=3, policy=RetryPolicy(max_attempts=5))
    assert life.begin(100.0)[0] == 0
    assert life.on_error("UNAVAILABLE", "refused", (), now_s=100.0, draw=0.5) == 0.0
    assert life.begin(100.0)[0] == 1
    error = Overloaded("full", retry_after_s=2.0)
    assert life.on_error("RESOURCE_EXHAUSTED", "full", details(error), now_s=100.0, draw=0.5) == 2.0
    assert life.begin(102.0)[0] == 1
    drains = Draining("going", retry_after_s=1.0)
    assert life.on_error("UNAVAILABLE", "going", details(drains), now_s=102.0, draw=0.5) == 0.0
    assert life.begin(102.0)[0] == 2
    # None is left that was not tried: from here on it waits.
    assert life.on_error("INTERNAL", "Received RST_STREAM with error code 2", (), now_s=102.0, draw=0.5) > 0


CUTS = st.lists(st.integers(1, 4), min_size=0, max_size=12)


@given(text=st.text("ab", min_size=1, max_size=12), first=CUTS, second=CUTS, lost_after=st.integers(1, 12))
def test_an_answer_goes_on_where_it_broke_off_however_it_is_cut(
    text: str, first: list[int], second: list[int], lost_after: int
) -> None:
    def pieces(cuts: list[int]) -> list[inference_pb2.GenerateResponse]:
        """The text in chunks, a token for each character; text lags behind where a cut is even."""
        found, start, told = [], 0, 0
        for cut in [*cuts, len(text)]:
            end = min(len(text), start + cut)
            upto = end if cut % 2 or end == len(text) else max(told, end - 1)
            if start < len(text):
                found.append(chunk(text[told:upto], *(ord(character) for character in text[start:end])))
            start, told = end, upto
        return found

    life = generation(num_routers=2)
    life.begin(100.0)
    got = [life.on_response(each) for each in pieces(first)[:lost_after]]
    assert life.on_error("UNAVAILABLE", "Socket closed", (), now_s=100.0, draw=0.0) == 0.0
    assert life.begin(100.0)[0] == 1
    got += [life.on_response(each) for each in pieces(second)]
    assert life.on_response(complete()) is None
    handed_out = [each for each in got if each is not None]
    assert "".join(each.text for each in handed_out) == text == life.result().text
    assert [token for each in handed_out for token in each.token_ids] == [ord(character) for character in text]
    assert all(each.text or each.token_ids for each in handed_out)


@pytest.mark.parametrize("others", [[chunk("Po", 9)], [chunk("Pa", 9)], [chunk("Pu", 1)], []])
def test_another_routers_answer_is_taken_only_where_it_is_the_same(
    others: list[inference_pb2.GenerateResponse],
) -> None:
    life = generation()
    life.begin(100.0)
    life.on_response(chunk("Pa", 1))
    life.on_error("UNAVAILABLE", "Socket closed", (), now_s=100.0, draw=0.0)
    life.begin(100.0)

    def hear_all() -> None:
        for each in [*others, complete()]:
            life.on_response(each)

    with pytest.raises(RouterLost) as caught:
        hear_all()
    assert caught.value.request_id == "r1"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", InvalidRequest),
        ("NOT_FOUND", UnknownModel),
        ("UNAUTHENTICATED", Unauthenticated),
        ("DEADLINE_EXCEEDED", DeadlineExceeded),
        ("INTERNAL", EngineFailed),
        ("UNKNOWN", EngineFailed),
    ],
)
def test_what_no_other_try_can_help_is_raised_at_once(code: str, kind: type[PagewireError]) -> None:
    life = generation()
    life.begin(100.0)
    with pytest.raises(kind) as caught:
        life.on_error(code, "no", (), now_s=100.0, draw=0.5)
    assert type(caught.value) is kind
    assert caught.value.request_id == "mine"


def test_details_restore_the_class_the_field_and_the_id() -> None:
    life = generation()
    life.begin(100.0)
    error = InvalidRequest("top_p must be in (0, 1], is 2", field="top_p")
    with pytest.raises(InvalidRequest, match="top_p must be") as caught:
        life.on_error("INVALID_ARGUMENT", error.message, details(error, "r9"), now_s=100.0, draw=0.5)
    assert (caught.value.field, caught.value.request_id) == ("top_p", "r9")


def test_details_that_do_not_parse_leave_the_status() -> None:
    life = generation()
    life.begin(100.0)
    with pytest.raises(InvalidRequest, match="no"):
        life.on_error("INVALID_ARGUMENT", "no", (("grpc-status-details-bin", b"\xff\xff"),), now_s=100.0, draw=0.5)


def test_a_pause_that_outlasts_the_deadline_is_not_begun() -> None:
    life = generation(total_s=5.0)
    life.begin(100.0)
    error = Overloaded("full", retry_after_s=7.0)
    with pytest.raises(Overloaded) as caught:
        life.on_error("RESOURCE_EXHAUSTED", "full", details(error), now_s=100.0, draw=0.5)
    assert caught.value.retry_after_s == 7.0


def test_the_deadline_covers_all_attempts() -> None:
    life = generation(total_s=5.0)
    assert life.begin(103.0)[1] == pytest.approx(2.0)
    with pytest.raises(DeadlineExceeded, match="within 5 s"):
        life.begin(105.0)


def test_retries_of_all_calls_share_a_budget_that_successes_refill() -> None:
    budget = RetryBudget(size=1.0, earned_per_success=0.5)
    first = generation(budget=budget)
    first.begin(100.0)
    first.on_error("UNAVAILABLE", "gone", (), now_s=100.0, draw=0.0)
    second = generation(budget=budget)
    second.begin(100.0)
    with pytest.raises(Unavailable):
        second.on_error("UNAVAILABLE", "gone", (), now_s=100.0, draw=0.0)
    for _ in range(2):
        success = generation(budget=budget)
        success.begin(100.0)
        success.on_response(complete())
    assert budget.left == 1.0


def test_a_stream_without_its_last_message_is_an_error() -> None:
    life = generation()
    life.begin(100.0)
    life.on_response(chunk("Pa", 1))
    with pytest.raises(EngineFailed, match="ended without"):
        life.result()
    with pytest.raises(EngineFailed, match="neither chunk nor complete"):
        life.on_response(inference_pb2.GenerateResponse(request_id="r1"))


def test_an_unknown_finish_reason_is_an_error() -> None:
    life = generation()
    life.begin(100.0)
    life.on_response(complete("boredom"))
    with pytest.raises(EngineFailed, match="boredom"):
        life.result()


def test_the_three_forms_of_a_prompt() -> None:
    assert request_to_wire("hi", {}).text == "hi"
    assert list(request_to_wire([1, 2, 3], {}).tokens.token_ids) == [1, 2, 3]
    for messages in ([Message(role="user", content="hi")], [{"role": "user", "content": "hi"}]):
        wire = request_to_wire(messages, {})
        assert [(message.role, message.content) for message in wire.chat.messages] == [("user", "hi")]


def test_what_goes_with_messages_goes_with_a_text_where_it_asks_for_nothing() -> None:
    nothing: dict[str, Any] = {
        "tools": None, "add_generation_prompt": True, "continue_final_message": False, "documents": [],
        "chat_template_kwargs": {},
    }  # fmt: skip
    assert request_to_wire("hi", cast(Options, nothing)) == request_to_wire("hi", {})
    chat = request_to_wire([{"role": "user", "content": "hi"}], cast(Options, {**nothing, "documents": [{}]})).chat
    assert (list(chat.documents), len(chat.tools)) == (["{}"], 0)
    something: tuple[dict[str, Any], ...] = (
        {"add_generation_prompt": False}, {"continue_final_message": True}, {"documents": [{}]},
    )  # fmt: skip
    for asked in something:
        with pytest.raises(InvalidRequest, match="goes with messages"):
            request_to_wire("hi", cast(Options, {**nothing, **asked}))


@pytest.mark.parametrize("prompt", [[], [-1], [2**32], [1.5], [None], [{"role": "user"}], [True]])
def test_a_prompt_of_no_known_form_is_refused_by_name(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request_to_wire(prompt, {})
    assert caught.value.field == "prompt"


@pytest.mark.parametrize(
    "asked",
    [
        {"parallel_tool_calls": "false"}, {"add_generation_prompt": "false"}, {"continue_final_message": "false"},
        {"continue_final_message": 1}, {"tools": 5}, {"tools": True}, {"documents": 5}, {"tool_choice": 5},
    ],
)  # fmt: skip
def test_what_goes_with_messages_is_refused_by_name_where_it_is_of_another_type(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request_to_wire([{"role": "user", "content": "hi"}], cast(Options, asked))
    assert [caught.value.field] == list(asked)


def test_options_left_out_stay_unset_and_zero_is_a_value() -> None:
    sampling = request_to_wire("hi", {"temperature": 0.0, "stop": "END", "max_tokens": None}).sampling
    assert sampling.HasField("temperature")
    assert not sampling.HasField("max_tokens")
    assert not sampling.HasField("seed")
    assert list(sampling.stop) == ["END"]


def test_an_option_that_is_unknown_or_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"unknown options \['temprature'\]"):
        request_to_wire("hi", {"temprature": 1.0})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidRequest, match="does not fit its type"):
        request_to_wire("hi", {"max_tokens": 2**70})
    wrong: list[dict[str, Any]] = [
        {"temperature": "x"}, {"max_tokens": 1.5}, {"seed": "1"}, {"model": 5}, {"cache_salt": 5}, {"priority": "high"},
        {"stop": 5}, {"stop": [5]}, {"stop_token_ids": 5}, {"stop_token_ids": ["a"]}, {"allowed_token_ids": [-1]},
        {"bad_words": 5}, {"bad_words": [5]}, {"bad_words": [["a"]]}, {"logit_bias": 5}, {"logit_bias": {"a": 1}},
        {"ignore_eos": "yes"}, {"request_id": 5}, {"regex": 5}, {"json_schema": 5}, {"json_schema": {"a": {1}}},
        {"truncation_side": 5}, {"stream_interval": 2**70},
    ]  # fmt: skip
    for options in wrong:
        (name,) = options
        with pytest.raises(InvalidRequest, match=f"^{name} does not fit its type") as caught:
            request_to_wire("hi", {"n": 2, **options})  # type: ignore[typeddict-item]
        assert caught.value.field == name


def test_answers_are_told_apart_by_their_index() -> None:
    life = generation()
    life.begin(100.0)
    ending = inference_pb2.Ending(finish_reason="stop", stop_token_id=4)
    for index, text, end in ((1, "Ro", None), (0, "Par", None), (1, "me", ending), (0, "is", None)):
        said = inference_pb2.Chunk(index=index, text=text, token_ids=[len(text)], ending=end)
        part = life.on_response(inference_pb2.GenerateResponse(request_id="r1", chunk=said))
        assert part is not None
        assert (part.index, part.finish_reason, part.stop) == (index, *((None, None) if end is None else ("stop", 4)))
    last = inference_pb2.Complete(endings=[inference_pb2.Ending(finish_reason="length"), ending])
    life.on_response(inference_pb2.GenerateResponse(request_id="r1", complete=last))
    result = life.result()
    assert [output.text for output in result.outputs] == ["Paris", "Rome"]
    assert [output.token_ids for output in result.outputs] == [(3, 2), (2, 2)]
    assert [(output.finish_reason, output.stop) for output in result.outputs] == [("length", None), ("stop", 4)]
    assert (result.text, result.token_ids, result.finish_reason, result.stop) == ("Paris", (3, 2), "length", None)
    assert request_to_wire("hi", {"n": 2}).sampling.n == 2
    assert not request_to_wire("hi", {}).sampling.HasField("n")


@pytest.mark.parametrize("endings", [0, 1])
def test_an_answer_that_was_not_ended_is_an_error(endings: int) -> None:
    life = generation()
    life.begin(100.0)
    said = inference_pb2.Chunk(index=1, text="x", token_ids=[1])
    life.on_response(inference_pb2.GenerateResponse(request_id="r1", chunk=said))
    last = inference_pb2.Complete(endings=[inference_pb2.Ending(finish_reason="length")] * endings)
    life.on_response(inference_pb2.GenerateResponse(request_id="r1", complete=last))
    with pytest.raises(EngineFailed):
        life.result()


def test_a_schema_of_anything_is_a_schema_and_no_text_is_none() -> None:
    assert request_to_wire("a", {"json_schema": {}}).sampling.guide.json_schema == "{}"
    unguided = request_to_wire("a", {"json_schema": "", "regex": "", "lark": "", "json_object": False})
    assert not unguided.sampling.HasField("guide")
    with pytest.raises(InvalidRequest, match="json_schema and regex both say"):
        request_to_wire("a", {"json_schema": {}, "regex": "a"})


def test_to_allow_no_token_is_refused_as_over_http() -> None:
    """The contract cannot tell it from all that there are."""
    with pytest.raises(InvalidRequest, match="which allows no token") as refused:
        request_to_wire("a", {"allowed_token_ids": []})
    assert refused.value.field == "allowed_token_ids"
    assert request_to_wire("a", {"allowed_token_ids": (5,)}).sampling.allowed_token_ids == [5]


def test_one_bad_word_is_not_taken_for_its_letters() -> None:
    with pytest.raises(InvalidRequest, match="bad_words does not fit its type") as refused:
        request_to_wire("a", {"bad_words": "no"})
    assert refused.value.field == "bad_words"
