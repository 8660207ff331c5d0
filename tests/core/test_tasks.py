"""A cancellation that a library swallowed still ends the task; what a cancelled task does last still works."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from pagewire.core.tasks import check_cancelled, heeds_cancellation


async def swallow() -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "done"


async def cancelled_in(task: asyncio.Task[str]) -> None:
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_marked_function_raises_what_was_swallowed() -> None:
    await cancelled_in(asyncio.create_task(heeds_cancellation(swallow)()))  # type: ignore[arg-type]


async def test_a_marked_function_raises_what_was_swallowed_for_an_error() -> None:
    @heeds_cancellation
    async def fail() -> str:
        await swallow()
        raise ConnectionError

    await cancelled_in(asyncio.create_task(fail()))


async def test_an_error_of_its_own_stays_one() -> None:
    @heeds_cancellation
    async def fail() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await fail()


async def test_a_loop_that_asks_ends() -> None:
    async def loop() -> str:
        while True:
            check_cancelled()
            await swallow()

    await cancelled_in(asyncio.create_task(loop()))


async def test_what_a_cancelled_task_does_last_goes_through() -> None:
    @heeds_cancellation
    async def last() -> str:
        await asyncio.sleep(0)
        return "withdrawn"

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await last()
        return "never"

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "withdrawn"


async def test_a_timeout_inside_is_no_cancellation() -> None:
    @heeds_cancellation
    async def bounded() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "never"

    assert await bounded() == "timed out"
