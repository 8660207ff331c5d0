"""What the sequences of a request have said, which of them go on, and what of them an engine is to run."""

from __future__ import annotations

import pytest
from engine_runs import greedy, spec

from pagewire.core.engine_messages import Join
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import Branch, branches
from pagewire.core.token_record import TokenRecord
from pagewire.decode_service.streams import Streams


def said(index: int, *tokens: int, ends: bool = False) -> TokenRecord:
    reason = FinishReason.STOP if ends else None
    return TokenRecord(request_id="r", index=index, position=0, tokens=tokens, finish_reason=reason)


def streams(n: int = 3) -> Streams:
    return Streams(spec("r", [1, 2], greedy(9, n=n), branches=branches(n)))


def search(n: int, width: int) -> Streams:
    sampling = SamplingParams(max_tokens=9, n=n, use_beam_search=True, beam_width=width)
    return Streams(spec("r", [1, 2], sampling, branches=branches(width)))


def test_what_is_said_is_kept_by_sequence_until_that_one_ends() -> None:
    heard = streams()
    assert [heard.hear(said(0, 5)), heard.hear(said(1, 6)), heard.hear(said(0, 7, 8))] == [True, True, True]
    assert heard.output() == (5, 7, 8)
    assert heard.hear(said(0, 9, ends=True)) is True
    assert heard.hear(said(0, 10)) is False, "it has ended"
    assert heard.output() == (6,), "the first of those that go on"
    assert heard.join(4) == Join(
        request_id="r", num_computed=4, output=(6,), index=1, branches=(Branch(index=2, output=()),)
    )


def test_it_is_over_with_the_last_sequence() -> None:
    heard = streams(2)
    assert (heard.is_over, heard.hear(said(1, 5, ends=True)), heard.is_over) == (False, True, False)
    assert (heard.hear(said(0, 5, ends=True)), heard.is_over) == (True, True)


def test_a_sequence_that_is_stopped_says_nothing_more() -> None:
    heard = streams(2)
    assert heard.stop(1) is True
    assert heard.stop(1) is False, "it has ended"
    assert heard.stop(7) is False, "there is none"
    assert heard.hear(said(1, 5)) is False
    assert not heard.is_over
    assert heard.stop(0) is True
    assert heard.is_over


def test_what_a_client_has_already_comes_first() -> None:
    going_on = spec("r", [1], greedy(9, n=2), index=3, output=(4, 5), branches=(Branch(index=5, output=(6,)),))
    heard = Streams(going_on)
    assert heard.hear(said(0, 9)) is False
    assert (heard.hear(said(3, 7)), heard.hear(said(5, 8))) == (True, True)
    assert heard.output() == (4, 5, 7)
    assert heard.join(0) == Join(
        request_id="r", num_computed=0, output=(4, 5, 7), index=3, branches=(Branch(index=5, output=(6, 8)),)
    )


@pytest.mark.parametrize(("n", "width"), [(1, 3), (2, 3), (3, 3)])
def test_of_a_search_the_first_n_answer_and_all_beams_run(n: int, width: int) -> None:
    heard = search(n, width)
    assert [heard.stop(index) for index in range(width)] == [False] * width, "the others need it"
    assert heard.join(2) == Join(request_id="r", num_computed=2, output=(), index=0, branches=branches(width))
    answered = [heard.hear(said(index, 5, ends=True)) for index in range(width)]
    assert answered == [index < n for index in range(width)]
    assert heard.is_over
