"""What events of a request say by themselves: how an answer ended, how a token reads, whose they are."""

from __future__ import annotations

import pytest

from pagewire.core.sampling import FinishReason
from pagewire.router.events import Begun, Chunk, Ending, Finished, ScoredToken, Usage
from pagewire.text.tools.reader import CallPart

STOP, LENGTH, CANCELLED = FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED


@pytest.mark.parametrize(
    ("reason", "has_calls", "is_within_call", "word"),
    [
        (STOP, False, False, "stop"),
        (STOP, True, False, "tool_calls"),
        (STOP, True, True, "stop"),  # nobody can answer half a call
        (STOP, False, True, "stop"),
        (LENGTH, True, False, "length"),
        (LENGTH, False, False, "length"),
        (CANCELLED, True, False, "cancelled"),
    ],
)
def test_only_a_whole_answer_with_calls_waits_for_their_results(
    reason: FinishReason, has_calls: bool, is_within_call: bool, word: str
) -> None:
    assert Ending(finish_reason=reason, has_calls=has_calls, is_within_call=is_within_call).word.value == word


def test_unless_it_is_said_an_ending_has_no_calls_and_its_stop_reason_is_what_stopped_it() -> None:
    assert Ending(finish_reason=STOP) == Ending(finish_reason=STOP, has_calls=False, is_within_call=False)
    assert Ending(finish_reason=STOP).stop_reason is None
    assert Ending(finish_reason=STOP, stop_token_id=0).stop_reason == 0
    assert Ending(finish_reason=STOP, stop_text="\n").stop_reason == "\n"


def test_a_token_reads_as_it_does_by_itself() -> None:
    told = [ScoredToken(token_id=1, data=data, logprob=None).text for data in ("é".encode(), b"\xc3", b"a\xa9b")]
    assert told == ["é", "\ufffd", "a\ufffdb"]


def test_unless_it_is_said_an_event_is_of_a_requests_first_answer_and_from_its_beginning() -> None:
    assert Begun(prompt=(1,)).first_index == 0
    chunk = Chunk(text="a", token_ids=(1,))
    assert chunk.index == 0
    finished = Finished(
        endings=(), usage=Usage(prompt_tokens=1, completion_tokens=0, cached_tokens=0), prompt=(1,), attempts=1,
        predicted_cached_tokens=0, timelines=(), report=None,
    )  # fmt: skip
    assert (finished.first_index, finished.longest) == (0, 0)


def test_words_and_pieces_of_calls_are_said_in_their_order() -> None:
    def part(index: int, at: int) -> CallPart:
        return CallPart(index=index, name="f", arguments="", id="c", at=at)

    assert list(Chunk(text="", token_ids=()).said) == []
    assert list(Chunk(text="ab", token_ids=()).said) == ["ab"]
    assert list(Chunk(text="", token_ids=(), calls=(part(0, 0), part(1, 0))).said) == [part(0, 0), part(1, 0)]
    calls = (part(0, 1), part(1, 1), part(2, 3))
    assert list(Chunk(text="abcd", token_ids=(), calls=calls).said) == ["a", calls[0], calls[1], "bc", calls[2], "d"]
    assert list(Chunk(text="abc", token_ids=(), calls=(part(0, 0), part(1, 3))).said) == [part(0, 0), "abc", part(1, 3)]


def test_a_chunk_has_no_reasoning_unless_told() -> None:
    assert (Chunk(text="a", token_ids=(1,)).num_reasoning, Chunk(text="a", token_ids=(1,)).reasoning) == (0, "")
