"""What is seen of a batch's steps, before a client in this process whose answers begin and come as was agreed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from pagewire.client import AsyncClient
from pagewire.client.results import Chunk, Result, Usage
from pagewire.slo.costs import batches
from pagewire.slo.costs.batches import ANSWER, Steps
from pagewire.slo.costs.question import Asker

LENGTH = 64
TOKEN_S = 0.001


@dataclass
class Stream:
    result: Result
    at_once: int
    written: asyncio.Semaphore  # one for each token
    lead: int  # tokens of another that come before the first

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for _ in range(self.lead):
            await self.written.acquire()
        num_tokens = self.result.usage.completion_tokens
        for begin in range(0, num_tokens, self.at_once):
            await asyncio.sleep(TOKEN_S)
            token_ids = tuple(range(begin, min(num_tokens, begin + self.at_once)))
            yield Chunk(text="", token_ids=token_ids)
            for _ in token_ids:
                self.written.release()


class Writer:
    """In place of a client: a second answer begins once the first has `lead` tokens; they come by `at_once`.

    `asked` has how many tokens were asked for, each time.
    """

    def __init__(self, lead: int, at_once: int = 1) -> None:
        self.asked: list[int] = []
        self._lead, self._at_once = lead, at_once
        self._written: list[asyncio.Semaphore] = []  # of those that run

    @asynccontextmanager
    async def stream(self, prompt: list[int], *, max_tokens: int, **_: object) -> AsyncIterator[Stream]:
        self.asked.append(max_tokens)
        is_first = len(self.asked) % 2 == 1
        self._written = [asyncio.Semaphore(0)] if is_first else self._written
        usage = Usage(prompt_tokens=len(prompt), completion_tokens=max_tokens, cached_tokens=0)
        lead = 0 if is_first else min(self._lead, max_tokens)
        result = Result(request_id="", outputs=(), usage=usage, timelines=())
        yield Stream(result, self._at_once, self._written[0], lead)


async def seen(writer: Writer, batch: int, max_model_len: int = 1000) -> Steps | None:
    asker = Asker(cast("AsyncClient", writer), vocab_size=1000, max_model_len=max_model_len, seed=0)
    return await batches.steps_of(asker, batch, LENGTH)


def of(steps: Steps | None) -> Steps:
    assert steps is not None
    return steps


async def test_answers_that_begin_together_are_asked_once() -> None:
    writer = Writer(lead=0)
    steps = of(await seen(writer, 2))
    assert writer.asked == [ANSWER] * 2
    assert steps.mean.batch == 2
    assert steps.mean.step_s >= TOKEN_S
    assert LENGTH < steps.mean.context < LENGTH + ANSWER


async def test_what_is_over_before_the_last_begins_is_asked_for_more_until_it_is_not() -> None:
    writer = Writer(lead=2 * ANSWER)
    steps = of(await seen(writer, 2))
    assert writer.asked == [ANSWER, ANSWER, 2 * ANSWER, 2 * ANSWER, 4 * ANSWER, 4 * ANSWER]
    assert LENGTH + ANSWER < steps.mean.context < LENGTH + 4 * ANSWER


async def test_where_no_more_fits_nothing_was_seen() -> None:
    writer = Writer(lead=2 * ANSWER)
    assert await seen(writer, 2, max_model_len=LENGTH + 2 * ANSWER + 1) is None
    assert writer.asked == [ANSWER, ANSWER, 2 * ANSWER, 2 * ANSWER]


async def test_tokens_that_all_come_at_once_are_no_steps() -> None:
    assert await seen(Writer(lead=0, at_once=10_000), 1, max_model_len=LENGTH + 4 * ANSWER) is None
