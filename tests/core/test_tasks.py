"""A cancellation that a library swallowed still ends the task."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from pagewire.core.tasks import check_cancelled, ended, shared


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


async def test_tasks_that_take_their_time_to_end_are_waited_for_also_by_one_that_is_cancelled_twice() -> None:
    may_end = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    async def fails() -> None:
        raise ValueError

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    tasks[0].cancel()
    waiting = asyncio.create_task(ended(*tasks))
    for _ in range(2):
        await asyncio.sleep(0.01)
        waiting.cancel()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(task.done() for task in tasks)
    await ended(*tasks)
    await ended()


async def test_what_several_wait_for_outlives_those_who_wait_too_briefly_or_are_cancelled() -> None:
    may_end = asyncio.Event()

    async def slow() -> str:
        await may_end.wait()
        return "made"

    task = asyncio.create_task(slow())
    patient, cancelled = asyncio.create_task(shared(task, 60)), asyncio.create_task(shared(task, 60))
    with pytest.raises(TimeoutError):
        await shared(task, 0.001)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    may_end.set()
    assert await patient == "made"


async def test_who_waits_for_a_task_that_is_cancelled_is_not_cancelled_with_it() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    waiting = asyncio.create_task(shared(task, 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ConnectionError):
        await waiting
    assert not waiting.cancelled()
