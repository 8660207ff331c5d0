"""Processes that run for moments only, so that a test that looks at what they do is in time to see it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import psutil


@contextlib.asynccontextmanager
async def in_moments(processes: Sequence[psutil.Process], condition: Callable[[], bool]) -> AsyncIterator[None]:
    """Let processes run for moments only while `condition()` holds, so that whoever hears of them keeps up."""

    def each(do: Callable[[psutil.Process], None]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                do(process)

    async def alternate() -> None:
        while condition():
            each(psutil.Process.suspend)
            await asyncio.sleep(0.05)
            each(psutil.Process.resume)
            await asyncio.sleep(0.01)

    alternating = asyncio.create_task(alternate())
    try:
        yield
    finally:
        alternating.cancel()
        await asyncio.gather(alternating, return_exceptions=True)
        each(psutil.Process.resume)
