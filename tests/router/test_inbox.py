"""One attempt's inbox, and the text that follows from it."""

from __future__ import annotations

import asyncio

import byte_tokenizer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.clock import ManualClock
from pagewire.core.errors import EngineFailed, PodLost
from pagewire.core.messages import Ended
from pagewire.core.sampling import FinishReason
from pagewire.core.token_record import TokenLogprobs, TokenRecord
from pagewire.router.inbox import Inbox, News
from pagewire.text.detokenizer import Detokenizer
from pagewire.text.text_stream import TextStream

TOKENIZER = byte_tokenizer.build()
CLOCK = ManualClock()
SCORE = TokenLogprobs(token=1, logprob=-1.0, rank=2)


def record(position: int, *tokens: int, reason: FinishReason | None = None, index: int = 0) -> TokenRecord:
    return TokenRecord(request_id="r", index=index, position=position, tokens=tokens, finish_reason=reason)


async def test_what_came_is_taken_at_once_and_in_order() -> None:
    inbox = Inbox(positions={0: 3}, limit=10, clock=CLOCK)
    inbox.put([record(3, 7)])
    inbox.put([record(4, 8, 9, reason=FinishReason.STOP)])
    arrived = await inbox.take()
    assert arrived.news == (News(index=0, tokens=(7, 8, 9), finish_reason=FinishReason.STOP),)
    assert arrived.ended is None
    assert not inbox.is_settled
    waiting = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.end(Ended(request_id="r"))
    assert (await waiting).ended == Ended(request_id="r")
    assert inbox.is_settled


@pytest.mark.parametrize(
    "bad",
    [
        record(1, 5),
        record(3, 5),
        record(2, 5, index=1),
        record(2, 1, 2, 3),
        record(2, 5, reason=FinishReason.STOP),
    ],
)
async def test_a_breach_fails_the_attempt_after_what_came_before(bad: TokenRecord) -> None:
    inbox = Inbox(positions={0: 0}, limit=4, clock=CLOCK)
    inbox.put([record(0, 1, 2)])
    if bad.finish_reason is not None:
        inbox.put([bad])
        bad = record(3, 6)  # nothing may follow the end
    inbox.put([bad])
    inbox.put([record(2, 5)])
    assert (await inbox.take()).news[0].tokens[:2] == (1, 2)
    with pytest.raises(EngineFailed):
        await inbox.take()
    assert not inbox.is_settled  # the pod still runs it, so it is to be cancelled


async def test_a_lost_pod_is_raised_after_its_last_tokens() -> None:
    inbox = Inbox(positions={0: 0}, limit=4, clock=CLOCK)
    inbox.put([record(0, 1)])
    inbox.lose(PodLost("gone"))
    assert (await inbox.take()).news[0].tokens == (1,)
    with pytest.raises(PodLost):
        await inbox.take()
    assert inbox.is_settled


async def test_an_end_without_tokens_is_news() -> None:
    inbox = Inbox(positions={0: 4}, limit=4, clock=CLOCK)
    inbox.put([record(4, reason=FinishReason.LENGTH)])
    assert (await inbox.take()).news[0].finish_reason is FinishReason.LENGTH


@given(
    ids=st.lists(st.integers(3, TOKENIZER.get_vocab_size() - 1), min_size=1, max_size=30),
    stops=st.lists(st.text("abt \n", min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(1, 5), max_size=20),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_records_of_any_size_give_the_same_text_and_tokens(
    ids: list[int], stops: list[str], cuts: list[int], reason: FinishReason
) -> None:
    def run(sizes: list[int]) -> tuple[str, list[int], str | None]:
        stream = TextStream(Detokenizer(TOKENIZER.decode), tuple(stops))
        text, tokens, at = "", list[int](), 0
        for size in [*sizes, len(ids)]:
            part = tuple(ids[at : at + size])
            at += len(part)
            piece = stream.push(part, reason if at == len(ids) else None)
            text += piece.text
            tokens += piece.tokens
            if piece.stop_text is not None or at == len(ids):
                return text, tokens, piece.stop_text
        raise AssertionError("the loop covers all tokens")

    whole = run([])
    assert run(cuts) == whole
    text, tokens, stop = whole
    full = TOKENIZER.decode(ids[:-1] if reason is FinishReason.STOP else ids)
    if stop is None:
        assert (text, tokens) == (full, ids)
    else:
        assert full.startswith(text + stop)
        assert tokens == ids[: len(tokens)]


@pytest.mark.parametrize(
    "bad",
    [
        record(0, 1),
        TokenRecord(request_id="r", index=0, position=0, tokens=(), prompt_logprobs=(SCORE,) * 3),
        TokenRecord(request_id="r", index=0, position=0, tokens=(1,), logprobs=(SCORE,), prompt_logprobs=(SCORE,)),
        TokenRecord(request_id="r", index=0, position=0, tokens=(1,), logprobs=(SCORE, SCORE)),
    ],
    ids=["a token without", "more of the prompt's", "a token before all of the prompt's", "more than tokens"],
)
async def test_log_probabilities_that_do_not_fit_fail_the_attempt(bad: TokenRecord) -> None:
    inbox = Inbox(positions={0: 0}, limit=5, clock=CLOCK, has_logprobs=True, num_scores=2)
    inbox.put([bad])
    with pytest.raises(EngineFailed):
        await inbox.take()


async def test_sequences_are_told_apart_and_taken_together() -> None:
    inbox = Inbox(positions={0: 2, 3: 5}, limit=10, clock=CLOCK)
    inbox.put([record(2, 7), record(5, 8, index=3)])
    inbox.put([record(6, 9, reason=FinishReason.LENGTH, index=3)])
    arrived = await inbox.take()
    assert arrived.news == (
        News(index=0, tokens=(7,)),
        News(index=3, tokens=(8, 9), finish_reason=FinishReason.LENGTH),
    )
    inbox.put([record(3, 1)])
    assert (await inbox.take()).news == (News(index=0, tokens=(1,)),)


@pytest.mark.parametrize(
    "frame",
    [
        [record(0, 1), record(1, 2, index=1)],
        [record(0, 1), record(0, 2, index=1), record(0, 3, index=2)],
        [record(0, 1), record(0, 2)],
        [record(0, 1)],
        [record(0, 1), record(0, 1, 2, 3, 4, 5, index=1)],
    ],
    ids=["a gap", "another's", "twice in a frame", "one begins before the others", "more than it may have"],
)
async def test_of_a_frame_that_breaks_the_contract_nothing_is_taken(frame: list[TokenRecord]) -> None:
    """So that a request always goes on from where all of its sequences are, or begins anew."""
    inbox = Inbox(positions={0: 0, 1: 0}, limit=4, clock=CLOCK)
    inbox.put(frame)
    with pytest.raises(EngineFailed):
        await inbox.take()


async def test_it_is_known_when_what_is_taken_came() -> None:
    clock = ManualClock(1.0)
    inbox = Inbox(positions={0: 0}, limit=9, clock=clock)
    for seconds, tokens in ((2.0, (1,)), (3.0, (2, 3)), (4.0, (4,))):
        clock.advance(seconds)
        inbox.put([record(tokens[0] - 1, *tokens)])
    clock.advance(50.0)
    late = await inbox.take()
    assert (late.first_s, late.last_s) == (3.0, 10.0)
    inbox.put([record(4, 5)])
    assert ((soon := await inbox.take()).first_s, soon.last_s) == (60.0, 60.0)
    clock.advance(1.0)
    inbox.end(Ended(request_id="r"))
    assert ((last := await inbox.take()).first_s, last.last_s) == (60.0, 60.0)
