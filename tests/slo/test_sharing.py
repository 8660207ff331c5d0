"""What is seen of pods that compute side by side, before a client in this process whose pods say what was agreed.

Spans of prompts are those of the pods' own stamps, so they are exact; those of answers are the loop's, and only that
they were seen, and how often, is asserted of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest

from pagewire.client import AsyncClient
from pagewire.client.results import Chunk, Result, Usage
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.slo.costs import sharing
from pagewire.slo.costs.calibration import BesideSeen
from pagewire.slo.costs.cost_model import StepKind
from pagewire.slo.costs.question import Asker

TOKEN_S = 0.001
ALONE_S, BESIDE_S = 0.2, 0.3  # that a prompt is said to take


@dataclass
class Stream:
    result: Result
    num_tokens: int

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for number in range(self.num_tokens):
            await asyncio.sleep(TOKEN_S)
            yield Chunk(text="", token_ids=(number,))


class Pods:
    """In place of a client: who asks for one token has it from a pod of `builders` in turn, an answer of `writers`."""

    def __init__(self, builders: Sequence[str], writers: Sequence[str]) -> None:
        self._builders, self._writers = builders, writers
        self._asked = {True: 0, False: 0}
        self._running = 0

    @asynccontextmanager
    async def stream(self, prompt: list[int], *, max_tokens: int, **_: object) -> AsyncIterator[Stream]:
        is_prompt = max_tokens == 1
        pods = self._builders if is_prompt else self._writers
        pod = pods[self._asked[is_prompt] % len(pods)]
        self._asked[is_prompt] += 1
        self._running += 1
        await asyncio.sleep(0)  # whoever is asked at the same time is there
        built_s = BESIDE_S if self._running > 1 else ALONE_S
        stamps = (Stamp(Phase.RESERVED, 0.0), Stamp(Phase.FIRST_STEP, built_s))
        result = Result(
            request_id="",
            outputs=(),
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=max_tokens, cached_tokens=0),
            timelines=(Timeline(process="router"), Timeline(process=pod, stamps=stamps)),
        )
        try:
            yield Stream(result, max_tokens)
        finally:
            self._running -= 1


def asker(*, builders: Sequence[str], writers: Sequence[str]) -> Asker:
    client = cast(AsyncClient, Pods(builders, writers))
    return Asker(client, vocab_size=1000, max_model_len=4096, seed=0)


def prompts_seen(seen: Sequence[BesideSeen]) -> list[tuple[StepKind, float, float]]:
    return [(each.other, each.alone_s, each.beside_s) for each in seen if each.mine is StepKind.PREFILL]


@pytest.mark.parametrize("batch", sharing.BATCHES)
async def test_who_is_beside_answers_is_one_observation_of_either_however_many_answers_it_has(batch: int) -> None:
    seen = await sharing.prompts_beside_answers(asker(builders="a", writers="b"), batch)
    assert [(each.mine, each.other) for each in seen] == [
        (StepKind.PREFILL, StepKind.DECODE), (StepKind.DECODE, StepKind.PREFILL),
    ]  # fmt: skip
    assert prompts_seen(seen) == [(StepKind.DECODE, ALONE_S, BESIDE_S)]
    assert 0 < seen[1].overlap <= 1


async def test_what_one_pod_does_both_of_is_nothing_that_was_seen() -> None:
    assert await sharing.prompts_beside_answers(asker(builders="a", writers="a"), 1) == []
    assert await sharing.prompts_beside_prompts(asker(builders="a", writers="b")) == []
    assert await sharing.answers_beside_answers(asker(builders="a", writers="b")) == []


async def test_two_prompts_at_once_are_one_observation() -> None:
    seen = await sharing.prompts_beside_prompts(asker(builders="ab", writers="b"))
    assert prompts_seen(seen) == [(StepKind.PREFILL, ALONE_S, BESIDE_S)]
    assert len(seen) == 1


async def test_two_answers_at_once_are_one_observation() -> None:
    seen = await sharing.answers_beside_answers(asker(builders="a", writers="ab"))
    assert [(each.mine, each.other) for each in seen] == [(StepKind.DECODE, StepKind.DECODE)]
