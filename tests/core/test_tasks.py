"""A cancellation that a library swallowed still ends the task."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from pagewire.core.tasks import check_cancelled


async def test_a_loop_that_asks_ends() -> None:
    async def loop() -> str:
        while True:
            check_cancelled()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
