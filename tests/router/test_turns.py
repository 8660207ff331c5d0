"""Who is prepared when: few at a time, in order, and whatever becomes of those before."""

from __future__ import annotations

import asyncio

import pytest

from pagewire.core.clock import ManualClock
from pagewire.router.refusals import Reason, Refused
from pagewire.router.turns import LEAST_PACE, Turn, Turns


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


async def test_what_a_request_waited_before_anybody_looked_at_it_is_part_of_it_and_of_what_it_may_wait() -> None:
    clock, patience_s = ManualClock(5.0), [1.0]
    turns = Turns(1, clock, lambda: patience_s[0])
    assert (await turns.take(1.0)).asked_s == 4.0
    turns = Turns(1, clock, lambda: patience_s[0])
    with pytest.raises(Refused) as raised:
        await turns.take(1.001)
    assert (raised.value.reason, raised.value.retry_after_s) == (Reason.SLO_TTFT, 1.0)
    patience_s[0] = 0.0  # nobody waits and it came just now: no patience is needed
    (await turns.take()).over()


async def crowded(
    turns: Turns, clock: ManualClock, *, ended: int, waiting: int, pace_s: float
) -> list[asyncio.Task[None]]:
    """Have so many had a turn, one each `pace_s`, and so many more still wait."""

    async def one() -> None:
        with await turns.take():
            await over.get()

    over: asyncio.Queue[None] = asyncio.Queue()
    tasks = [asyncio.create_task(one()) for _ in range(ended + 1 + waiting)]
    await asyncio.sleep(0)
    for _ in range(ended):
        clock.advance(pace_s)
        over.put_nowait(None)
        for _ in range(6):
            await asyncio.sleep(0)
    return tasks


async def gone(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_wait_is_who_waits_at_the_pace_of_those_before() -> None:
    clock = ManualClock()
    turns = Turns(1, clock)
    tasks = await crowded(turns, clock, ended=LEAST_PACE - 2, waiting=5, pace_s=0.25)
    assert turns.wait_s == 0.0, "the pace is not known yet"
    await gone(tasks)
    tasks = await crowded(turns, clock, ended=LEAST_PACE - 1, waiting=5, pace_s=0.25)
    assert turns.wait_s == 5 * 0.25
    await gone(tasks)
    assert turns.wait_s == 0.0, "nobody waits"


async def test_who_would_wait_for_too_long_is_refused_at_once_and_nobody_else() -> None:
    clock, patience_s = ManualClock(), [1.25]
    turns = Turns(1, clock, lambda: patience_s[0])
    tasks = await crowded(turns, clock, ended=LEAST_PACE, waiting=5, pace_s=0.25)
    waits = asyncio.create_task(turns.take())
    await asyncio.sleep(0)
    assert not waits.done(), "as long as it may"
    with pytest.raises(Refused) as refused:
        await turns.take()
    assert (refused.value.reason, refused.value.retry_after_s) == (Reason.SLO_TTFT, 6 * 0.25)
    patience_s[0] = 2.0
    also_waits = asyncio.create_task(turns.take())
    await asyncio.sleep(0)
    assert not also_waits.done()
    await gone([*tasks, waits, also_waits])  # type: ignore[list-item]


async def test_a_pace_from_before_a_rest_is_not_the_pace_now() -> None:
    clock = ManualClock()
    turns = Turns(1, clock, lambda: 0.1)
    await gone(await crowded(turns, clock, ended=LEAST_PACE, waiting=1, pace_s=9.0))
    clock.advance(3600.0)
    tasks = await crowded(turns, clock, ended=0, waiting=20, pace_s=9.0)
    assert turns.wait_s == 0.0
    await gone(tasks)


def _fail(turn: Turn) -> None:
    with turn:
        raise RuntimeError("whatever")
