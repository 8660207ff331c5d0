"""Calls that come at their own pace, whatever became of those before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from load_call import WAIT_S, Call, Lines, ask
from load_questions import Question

STOOD_STILL_S = 1.0


class OpenLoad:
    """Calls upon some routers, `rate` a second, each with a salt of its own: nothing is found in a cache.

    `urls` is asked for each call anew. A lean one costs the machine less: calls go by connections that others had
    before, as those of clients with a pool do, and what was said is read when all are over. Every question is asked for
    all of its known answer. It calls from when its context is entered until `stop`; what is not over when the context
    ends is called off.
    """

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        questions: Sequence[Question],
        rate: float,
        name: str,
        *,
        is_lean: bool = False,
    ) -> None:
        self._urls = urls
        self._questions = questions
        self._rate = rate
        self._name = name
        self._begun: set[asyncio.Task[Call]] = set()
        self._driver: asyncio.Task[None] | None = None
        self._due = 0
        self._is_lean = is_lean
        self._lines = Lines(keeps=is_lean)
        self.calls: list[Call] = []

    @property
    def running(self) -> int:
        """How many have begun and are not over."""
        return len(self.calls) - sum(call.is_over for call in self.calls)

    async def __aenter__(self) -> OpenLoad:
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._driver, *self._begun) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lines.close()

    async def stop(self) -> list[Call]:
        """Call no more; return all calls once they are over."""
        assert self._driver is not None
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)
        await asyncio.gather(*self._begun)
        if self._is_lean:
            for call in self.calls:
                call.read()
        return self.calls

    async def _drive(self) -> None:
        began_s = time.monotonic()
        while True:
            early_s = began_s + self._due / self._rate - time.monotonic()
            if early_s < -STOOD_STILL_S:  # we ourselves did, and nobody called meanwhile
                began_s -= early_s
            await asyncio.sleep(max(0.0, early_s))
            self.call()
            self._due += 1

    def call(self) -> Call:
        """Begin one more call."""
        number = len(self.calls)
        question = self._questions[number % len(self._questions)]
        urls = list(self._urls())
        order = urls[number % len(urls) :] + urls[: number % len(urls)]
        call = Call(question, time.monotonic(), len(question.answer))
        self.calls.append(call)
        asked = ask(call, order, reads=not self._is_lean, lines=self._lines, cache_salt=f"{self._name}.{number}")
        task = asyncio.create_task(asked)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return call

    async def burst(self, number: int, streaming: int) -> None:
        """Begin so many at once; return when some of them stream and the others are on their way, or all are over."""
        calls = [self.call() for _ in range(number)]
        async with asyncio.timeout(WAIT_S):
            while sum(call.is_over or call.has_tokens for call in calls) < streaming:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
