"""How long tests wait: for as long as they ran themselves.

A process that is stopped, or has no core for a while, finds every moment of the clock over when it goes on, and what it
waits for not yet there. So a look and the sleep behind it count as a moment, however long they took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

MOMENT_S = 0.25


async def comes_true(condition: Callable[[], bool], *, within_s: float, every_s: float) -> bool:
    """Return whether `condition()` held within so many seconds of ours. It is looked at again and again."""
    waited_s = 0.0
    while True:
        begun_s = time.monotonic()
        if condition():
            return True
        if waited_s >= within_s:
            return False
        await asyncio.sleep(every_s)
        waited_s += min(time.monotonic() - begun_s, MOMENT_S)


def came_true(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    """As `comes_true`, for tests that await nothing."""
    return asyncio.run(comes_true(condition, within_s=within_s, every_s=0.1))


async def comes_true_later(condition: Callable[[], Awaitable[bool]], *, within_s: float, every_s: float = 0.1) -> bool:
    """Return whether `condition()`, which has to be waited for, came to hold within so many seconds of ours."""
    waited_s = 0.0
    while not await condition():
        if waited_s >= within_s:
            return False
        begun_s = time.monotonic()
        await asyncio.sleep(every_s)
        waited_s += min(time.monotonic() - begun_s, MOMENT_S)
    return True
