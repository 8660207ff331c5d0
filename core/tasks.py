"""Cancellation that must not get lost, nor reach whom nobody cancelled.

grpc.aio swallows it when a call that is just being begun fails by itself; a task that several wait for hands its own on
to all of them. Knows nothing of gRPC. Invariants: a loop that asks here before each round ends after it was cancelled;
who waits here for tasks waits until they have ended, also when it is cancelled meanwhile; who waits here for what a
task returns is cancelled only when somebody cancels it.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def check_cancelled() -> None:
    """Raise CancelledError when the running task was asked to end, whoever caught that since."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def shared(task: asyncio.Task[T], timeout_s: float) -> T:
    """Return what a task returns that others wait for too: it goes on where one of them waits too briefly.

    Raises TimeoutError after `timeout_s` seconds, what the task raises, and ConnectionError where it was cancelled.
    """
    async with asyncio.timeout(timeout_s):
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            check_cancelled()
            raise ConnectionError("whoever began it has given it up") from None


async def ended(*tasks: asyncio.Task[None]) -> None:
    """Return when all of the cancelled `tasks` have ended, also when the caller is cancelled meanwhile: then raises.

    What they raised is theirs to have told.
    """
    interrupted: asyncio.CancelledError | None = None
    everything = asyncio.gather(*tasks, return_exceptions=True)
    while any(not task.done() for task in tasks):
        try:
            await asyncio.shield(everything)
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
