"""The player, and sessions, before a target that answers as a script says: whom it asks, in which order and when.

Nothing waits for a real moment but where it says so: what is proven is the order of things, not how long they take.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

import pytest

from pagewire.slo.figures.record import Record
from pagewire.slo.load.ask import Ask, AskFailed, Part
from pagewire.slo.load.conversation import Wording
from pagewire.slo.load.player import LAG_EVERY_S, Player
from pagewire.slo.load.run_clock import RunClock
from pagewire.slo.load.session import Limits
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.workload import Workload

Answer = Callable[[Ask], AsyncGenerator[Part, None]]


class Scripted:
    """A target: `noted` has each request twice, when it was written and when it was sent."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.noted: list[tuple[str, int]] = []

    def call(self, ask: Ask) -> AsyncGenerator[Part, None]:
        self.noted.append(("written", number_of(ask)))
        return self._send(ask)

    async def _send(self, ask: Ask) -> AsyncGenerator[Part, None]:
        self.noted.append(("sent", number_of(ask)))
        async for part in self._answer(ask):
            yield part


def number_of(ask: Ask) -> int:
    """Return the number of its arrival."""
    return int(ask.request_id.split("-")[-2])


def one(think_s: float = 0.0) -> Turn:
    return Turn(input_tokens=1, output_tokens=1, pieces=(1,), think_s=think_s)


def workload(*arrivals: Arrival, concurrency: int = 0) -> Workload:
    return Workload(name="w", source=lambda: arrivals, concurrency=concurrency)


def player(
    asked: Workload, target: Scripted, clock: RunClock | None = None, *, timeout_s: float = 60.0,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Player:  # fmt: skip
    wording = Wording(piece_tokens=asked.piece_tokens, seed=0)
    return Player(asked, target, clock or RunClock(), wording, Limits(timeout_s=timeout_s), on_record)


async def at_once(ask: Ask) -> AsyncGenerator[Part, None]:
    yield Part(at_s=0.0, has_token=True, token_ids=(5,))


async def test_a_client_that_is_behind_sends_what_it_wrote_before_it_writes_more() -> None:
    """All are due already, so it waits for none of them: it must not write a thousand bodies and then send them all."""
    target = Scripted(at_once)
    played = await player(workload(*[Arrival(at_s=0.0, turns=(one(),))] * 50), target).play()
    assert len(played.records) == 50
    for number in range(48):
        assert target.noted.index(("sent", number)) < target.noted.index(("written", number + 2))


async def test_a_client_that_is_behind_can_be_cancelled() -> None:
    async def cancelling(ask: Ask) -> AsyncGenerator[Part, None]:
        playing.cancel()
        yield Part(at_s=0.0, has_token=True, token_ids=(5,))

    target = Scripted(cancelling)
    playing = asyncio.create_task(player(workload(*[Arrival(at_s=0.0, turns=(one(),))] * 1000), target).play())
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert len([what for what, _ in target.noted if what == "written"]) < 10


class SetClock(RunClock):
    """Stands still but where it is set, or somebody waits for a moment."""

    def start(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    async def until(self, at_s: float) -> None:
        self.now_s = max(self.now_s, at_s)
        await asyncio.sleep(0)


@pytest.mark.parametrize("concurrency", [0, 1])
async def test_a_later_turn_is_due_by_when_the_answer_ended_whatever_the_client_did_since(concurrency: int) -> None:
    clock = SetClock()

    async def slowly_read(ask: Ask) -> AsyncGenerator[Part, None]:
        clock.now_s += 0.5
        yield Part(at_s=clock.now_s, has_token=True, token_ids=(5,))
        clock.now_s += 0.25
        yield Part(at_s=clock.now_s)  # the word that it is over
        clock.now_s += 0.125  # the loop is late, the connection is looked after

    def keep(record: Record) -> None:
        clock.now_s += 0.75  # a slow disk

    asked = workload(Arrival(at_s=0.0, turns=(one(), one(2.0), one(0.0))), concurrency=concurrency)
    first, second, third = (await player(asked, Scripted(slowly_read), clock, on_record=keep).play()).records
    assert (first.intended_s, first.last_s, first.ended_s) == (0.0, 0.5, 0.75)
    assert (second.intended_s, second.sent_s, second.last_s) == (0.75 + 2.0, 0.75 + 2.0, 3.25)
    assert (third.intended_s, third.late_s) == (3.5, 0.125 + 0.75)  # which it is the client's fault to be late by


async def test_when_a_request_failed_is_recorded() -> None:
    clock = SetClock()

    async def failing(ask: Ask) -> AsyncGenerator[Part, None]:
        clock.now_s += 0.5
        if number_of(ask) == 0:
            yield Part(at_s=clock.now_s, has_token=True, token_ids=(5,))
        clock.now_s += 2.0
        raise AskFailed("connection", "it broke off")

    async def silent(ask: Ask) -> AsyncGenerator[Part, None]:
        clock.now_s += 8.0
        await asyncio.Event().wait()
        yield Part(at_s=clock.now_s)

    arrivals = (Arrival(at_s=0.0, turns=(one(), one())), Arrival(at_s=0.0, turns=(one(),)))
    asked = workload(*arrivals, concurrency=1)
    begun, refused = (await player(asked, Scripted(failing), clock).play()).records
    assert (begun.error, begun.last_s, begun.ended_s) == ("connection", 0.5, 2.5)
    assert (refused.error, refused.last_s, refused.ended_s) == ("connection", None, 5.0)
    (hung,) = (await player(workload(arrivals[1]), Scripted(silent), clock, timeout_s=0.05).play()).records
    assert (hung.error, hung.ended_s) == ("timeout", 8.0)


async def test_a_client_that_stands_still_was_late_for_all_that_was_due_meanwhile() -> None:
    """One long stall would be one sample of many, and no percentile would show it."""

    async def busy(ask: Ask) -> AsyncGenerator[Part, None]:
        await asyncio.sleep(3 * LAG_EVERY_S)  # the meter waits by then
        time.sleep(0.5)  # noqa: ASYNC251
        yield Part(at_s=0.0, has_token=True, token_ids=(5,))
        await asyncio.sleep(3 * LAG_EVERY_S)

    played = await player(workload(Arrival(at_s=0.0, turns=(one(),))), Scripted(busy)).play()
    assert sum(lag_s > 0.1 for lag_s in played.lags_s) > 30
    assert max(played.lags_s) > 0.4
