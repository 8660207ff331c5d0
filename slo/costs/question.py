"""One request by which a running cluster is measured: when its tokens came, and what it cost where.

Prompts are made up, so that no cache holds them. Moments are of this process's monotonic clock, spans within a pod of
the pod's own; the two are never subtracted.
"""

from __future__ import annotations

import asyncio
import random
import time

from pagewire.client import AsyncClient
from pagewire.client.results import Result
from pagewire.core.timeline import Phase, Timeline

LOW_ID, HIGH_ID = 100, 30_000
LEAST_TOKENS = 6  # that say how far apart they come


class Asker:
    """Asks through `client` a model that takes `max_model_len` tokens of ids below `vocab_size`; `seed` draws them."""

    def __init__(self, client: AsyncClient, *, vocab_size: int, max_model_len: int, seed: int) -> None:
        self._client = client
        self._high = min(HIGH_ID, vocab_size)
        self._low = min(LOW_ID, self._high // 2)
        self._max_model_len = max_model_len
        self._chance = random.Random(seed)

    def longest(self, max_tokens: int) -> int:
        """Return how many tokens a prompt may have before such an answer."""
        return self._max_model_len - max_tokens - 1

    def begin(self, tokens: int, max_tokens: int) -> Question:
        """Ask for an answer of so many tokens to as many as fit of a prompt's, and do not wait for it."""
        length = min(tokens, self.longest(max_tokens))
        return Question(
            self._client, [self._chance.randrange(self._low, self._high) for _ in range(length)], max_tokens
        )

    async def ask(self, tokens: int, max_tokens: int) -> Question:
        """Ask, and wait for the whole answer; raises what a request of the client does."""
        question = self.begin(tokens, max_tokens)
        await question.done()
        return question


class Question:
    """`moments` has when each token came; the rest is known once it is done."""

    def __init__(self, client: AsyncClient, prompt: list[int], max_tokens: int) -> None:
        self.tokens = len(prompt)
        self.asked_s = time.monotonic()
        self.moments: list[float] = []
        self._came = asyncio.Event()
        self._task = asyncio.create_task(self._run(client, prompt, max_tokens))
        self._task.add_done_callback(lambda _: self._came.set())

    async def _run(self, client: AsyncClient, prompt: list[int], max_tokens: int) -> Result:
        async with client.stream(prompt, max_tokens=max_tokens, ignore_eos=True, temperature=0.0) as stream:
            async for chunk in stream:
                self.moments += [time.monotonic()] * len(chunk.token_ids)
                self._came.set()
            return stream.result

    async def has(self, num_tokens: int) -> None:
        """Wait until so many tokens came; raises what became of the request in their place."""
        while len(self.moments) < num_tokens:
            if self._task.done():
                raise self._task.exception() or ValueError(f"{len(self.moments)} tokens came, not {num_tokens}")
            self._came.clear()
            await self._came.wait()

    async def done(self) -> None:
        """Wait for the whole answer."""
        await self._task

    @property
    def result(self) -> Result:
        """What came."""
        return self._task.result()

    @property
    def ttft_s(self) -> float:
        """Seconds until the first token."""
        return self.moments[0] - self.asked_s

    @property
    def intake_s(self) -> float:
        """Seconds that the router took until a pod was asked."""
        return _between_s(self.result.timelines[0], Phase.RECEIVED, Phase.SUBMITTED)

    @property
    def is_remote(self) -> bool:
        """True when another pod built the prompt than the one that wrote the answer."""
        report = self.result.transfer
        return report is not None and report.placement == "remote" and len(self.result.timelines) > 2

    @property
    def builder(self) -> str:
        """The pod that built the prompt."""
        return self.result.timelines[2 if self.is_remote else 1].process

    @property
    def writer(self) -> str:
        """The pod that wrote the answer."""
        return self.result.timelines[1].process

    @property
    def compute_s(self) -> float:
        """Seconds from the beginning of the prompt's first step to the end of its last."""
        if self.is_remote:
            return _between_s(self.result.timelines[2], Phase.PREFILL_BEGUN, Phase.LAST_CHUNK_COMPUTED)
        return _between_s(self.result.timelines[1], Phase.RESERVED, Phase.FIRST_STEP)

    def step_s(self, from_s: float, until_s: float) -> float | None:
        """Return the mean time between tokens in a span, None where too few came in it to say."""
        moments = [moment for moment in self.moments if from_s <= moment <= until_s]
        return (moments[-1] - moments[0]) / (len(moments) - 1) if len(moments) > LEAST_TOKENS else None


def _between_s(timeline: Timeline, start: Phase, end: Phase) -> float:
    seconds = timeline.between_s(start, end)
    if seconds is None:
        raise ValueError(f"{timeline.process} did not stamp {start} and {end}")
    return seconds
