"""Who is prepared when: few at a time, in order, and whatever becomes of those before."""

from __future__ import annotations

import asyncio

import pytest

from pagewire.core.clock import ManualClock
from pagewire.router.turns import Turn, Turns


async def test_turns_come_in_order_and_few_at_a_time() -> None:
    turns, began, ends = Turns(2, ManualClock()), list[int](), [asyncio.Event() for _ in range(5)]

    async def one(number: int) -> None:
        with await turns.take():
            began.append(number)
            await ends[number].wait()

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(one(number))
        for at, number in enumerate((1, 0, 3, 2, 4)):
            for _ in range(4):  # the end of one wakes the next
                await asyncio.sleep(0)
            assert began == list(range(min(5, at + 2)))
            ends[number].set()


async def test_a_turn_that_fails_or_is_over_early_makes_room_once() -> None:
    turns = Turns(1, ManualClock())
    with pytest.raises(RuntimeError):
        _fail(await turns.take())
    with await turns.take() as first:
        first.over()
        with await turns.take():  # so there was room
            first.over()
            waits = asyncio.create_task(turns.take())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waits.done()
        (await waits).over()


async def test_who_gives_up_waiting_takes_nothing() -> None:
    turns = Turns(1, ManualClock())
    with await turns.take():
        waits = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        waits.cancel()
    with await turns.take():
        pass


async def test_the_wait_for_a_turn_is_part_of_a_request() -> None:
    clock = ManualClock(5.0)
    turns = Turns(1, clock)
    with await turns.take():
        waits = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        clock.advance(3.0)
    assert (await waits).asked_s == 5.0


def _fail(turn: Turn) -> None:
    with turn:
        raise RuntimeError("whatever")
