"""In the order of the policy, bounded: with an engine that grants when it is told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pagewire.core.block_hash import BlockHash
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Reserve, Reserved
from pagewire.core.errors import ErrorInfo, InvalidRequest, Overloaded, PagewireError
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.decode_service.admission import Admission
from pagewire.engine.scheduling_policy import S_PER_PRIORITY, policy_named

FCFS: dict[str, Any] = {"scheduling": policy_named("fcfs"), "clock": ManualClock()}


def spec(name: str, priority: int = 0) -> SequenceSpec:
    root = BlockHash(b"r" * 16)
    return SequenceSpec(request_id=name, tokens=(1,), sampling=SamplingParams(), root=root, priority=priority)


class Pool:
    """Grants as many reservations as it has places; stands for the engine, whose own refusals are tested there."""

    def __init__(self, places: int, error: PagewireError | None = None) -> None:
        self.places = places
        self.error = error or Overloaded("no room")
        self.granted: list[str] = []

    async def reserve(self, message: Reserve) -> Reserved:
        await asyncio.sleep(0)
        if self.places == 0:
            return Reserved(request_id=message.spec.request_id, error=ErrorInfo.of(self.error))
        self.places -= 1
        self.granted.append(message.spec.request_id)
        return Reserved(request_id=message.spec.request_id, hit_blocks=2)


async def test_room_is_given_in_the_order_of_asking() -> None:
    pool = Pool(0)
    admission = Admission(pool.reserve, max_waiting=10, **FCFS)
    asked = [asyncio.create_task(admission.reserve(spec(str(i)))) for i in range(5)]
    await asyncio.sleep(0.01)
    assert (admission.num_waiting, pool.granted) == (5, [])
    for place in range(5):
        pool.places += 1
        admission.room()
        reserved = await asked[place]
        assert (reserved.request_id, reserved.hit_blocks) == (str(place), 2)
    assert pool.granted == ["0", "1", "2", "3", "4"]
    assert admission.num_waiting == 0


async def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    admission = Admission(Pool(0).reserve, max_waiting=2, **FCFS)
    waiting = [asyncio.create_task(admission.reserve(spec(str(i)))) for i in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded) as refused:
        await admission.reserve(spec("late"))
    assert refused.value.retry_after_s > 0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert admission.num_waiting == 0


async def test_who_gives_up_lets_the_next_one_ask() -> None:
    pool = Pool(0)
    admission = Admission(pool.reserve, max_waiting=10, **FCFS)
    first, second = (asyncio.create_task(admission.reserve(spec(name))) for name in "ab")
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    pool.places = 1
    admission.room()
    assert (await second).request_id == "b"


async def test_what_can_never_fit_is_not_waited_for() -> None:
    admission = Admission(
        Pool(0, InvalidRequest("needs 9 of 4 blocks", field="prompt")).reserve, max_waiting=10, **FCFS
    )
    with pytest.raises(InvalidRequest, match="9 of 4"):
        await admission.reserve(spec("huge"))


async def test_room_is_given_by_priority_to_those_that_wait_and_by_age_in_the_end() -> None:
    pool, clock = Pool(0), ManualClock()
    admission = Admission(pool.reserve, max_waiting=10, scheduling=policy_named("priority"), clock=clock)

    async def ask(name: str, priority: int) -> asyncio.Task[Reserved]:
        task = asyncio.create_task(admission.reserve(spec(name, priority)))
        await asyncio.sleep(0.01)
        return task

    asked = [await ask("low", 1), await ask("normal", 0), await ask("high", -1)]
    clock.advance(2 * S_PER_PRIORITY + 0.1)
    asked.append(await ask("high, but late", -1))
    pool.places = 4
    admission.room()
    await asyncio.gather(*asked)
    assert pool.granted == ["high", "normal", "low", "high, but late"]
