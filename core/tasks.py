"""Cancellation that must not get lost: grpc.aio swallows it when a call that is just being begun fails by itself.

Knows nothing of gRPC. Invariants: a loop that asks here before each round ends after it was cancelled; who waits here
for tasks waits until they have ended, also when it is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio


def check_cancelled() -> None:
    """Raise CancelledError when the running task was asked to end, whoever caught that since."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


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
