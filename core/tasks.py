"""Cancellation that must not get lost: grpc.aio swallows it when a call that is just being begun fails by itself.

Knows nothing of gRPC. Invariant: a loop that asks here before each round ends after it was cancelled.
"""

from __future__ import annotations

import asyncio


def check_cancelled() -> None:
    """Raise CancelledError when the running task was asked to end, whoever caught that since."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
