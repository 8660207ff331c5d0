"""Cancellation that must not get lost. grpc.aio swallows it when a call that is just being begun fails by itself, and
Python 3.11's `asyncio.wait_for`, which redis-py uses, when what it waits for is done or fails in the same moment.

Knows nothing of gRPC or Redis. Invariant: a loop that asks here before each round ends after it was cancelled, and a
coroutine function marked here raises when it was cancelled, whatever it awaits.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def check_cancelled() -> None:
    """Raise CancelledError when the running task was asked to end, whoever caught that since."""
    if _requests():
        raise asyncio.CancelledError


def heeds_cancellation(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make a coroutine function raise CancelledError where the running task was asked to end while it ran."""

    @functools.wraps(function)
    async def heeding(*args: P.args, **kwargs: P.kwargs) -> T:
        before = _requests()  # more than none in what a cancelled task does last
        try:
            result = await function(*args, **kwargs)
        except Exception as error:  # which may be what the cancellation was swallowed for
            if _requests() > before:
                raise asyncio.CancelledError from error
            raise
        if _requests() > before:
            raise asyncio.CancelledError
        return result

    return heeding


def _requests() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
