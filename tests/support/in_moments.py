"""Processes that run for moments only or not at all, so that a test that looks at what they do is in time to see it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import psutil
from live_cluster import LiveCluster


@contextlib.contextmanager
def standing_still(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop processes meanwhile, those that end excepted: nothing is over before it is found."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def until_gone(cluster: LiveCluster, struck: Sequence[dict[str, Any]]) -> Callable[[], bool]:
    """Return what holds until the pod that comes to be in `struck` is gone.

    What a drain leaves it is enough, at full speed, to end what it has.
    """
    return lambda: not struck or struck[0] in cluster.alive()


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
