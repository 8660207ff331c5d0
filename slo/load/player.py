"""Plays a workload against a server: begins each arrival when it is due, and keeps a record of every request.

Open loop: an arrival begins when it is due, whatever became of others. Closed loop: each user begins the next one when
its last was answered. Invariant: nothing that a server or this process does makes a request due later, but in a closed
loop; so what was late shows in the latencies (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pagewire.slo.figures.record import Record
from pagewire.slo.load.ask import Target
from pagewire.slo.load.conversation import Wording
from pagewire.slo.load.run_clock import RunClock
from pagewire.slo.load.session import Limits, Session
from pagewire.slo.workloads.arrival import Arrival
from pagewire.slo.workloads.workload import Workload

LAG_EVERY_S = 0.01


@dataclass(slots=True)
class Played:
    """What happened so far: arrivals that are being played, and the records of requests that ended.

    `lags_s` are what timers of this process were late by: while it is busy, it neither sends nor stamps. `is_cut` where
    there was more to ask than the run had time for. `left` is how many arrivals were under way when it was cancelled.
    """

    running: int = 0
    left: int = 0
    records: list[Record] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    is_cut: bool = False


class Player:
    """One run of a workload; `played` holds at any time, and `on_record` hears of each record."""

    def __init__(
        self, workload: Workload, target: Target, clock: RunClock, wording: Wording, limits: Limits,
        on_record: Callable[[Record], None] = lambda record: None,
    ) -> None:  # fmt: skip
        self.played = Played(is_cut=workload.is_cut)
        self._workload = workload
        self._target = target
        self._clock = clock
        self._wording = wording
        self._limits = limits
        self._on_record = on_record
        self._run_id = f"slo-{uuid.uuid4().hex[:8]}"

    async def play(self) -> Played:
        """Ask all that is due and wait for the answers. Cancelling it cancels every request.

        Raises what the first to fail raised: a record that cannot be kept, a workload that cannot be written.
        """
        try:
            await self._play_all()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return self.played

    async def _play_all(self) -> None:
        arrivals = enumerate(self._workload)
        self._clock.start()
        async with self._measured_lag(), asyncio.TaskGroup() as tasks:
            if self._workload.concurrency:
                for _ in range(self._workload.concurrency):
                    tasks.create_task(self._be_user(arrivals))
            else:
                await self._begin_when_due(arrivals, tasks)

    async def _begin_when_due(self, arrivals: Iterator[tuple[int, Arrival]], tasks: asyncio.TaskGroup) -> None:
        for number, arrival in arrivals:
            if arrival.at_s >= self._limits.duration_s:
                self.played.is_cut = True
                return
            session = self._session(number, arrival)
            await self._clock.until(arrival.at_s)
            tasks.create_task(self._play(session, arrival.at_s))

    async def _be_user(self, arrivals: Iterator[tuple[int, Arrival]]) -> None:
        for number, arrival in arrivals:
            session = self._session(number, arrival)
            due_s = self._clock.now()
            if due_s >= self._limits.duration_s:
                self.played.is_cut = True
                return
            await self._play(session, due_s)

    def _session(self, number: int, arrival: Arrival) -> Session:
        return Session(
            self._run_id, number, arrival, target=self._target, clock=self._clock, wording=self._wording,
            limits=self._limits,
        )  # fmt: skip

    async def _play(self, session: Session, due_s: float) -> None:
        self.played.running += 1
        try:
            async for record in session.records(due_s):
                self.played.records.append(record)
                self._on_record(record)
            self.played.is_cut |= session.is_cut
        except asyncio.CancelledError:
            self.played.left += 1
            raise
        finally:
            self.played.running -= 1

    @asynccontextmanager
    async def _measured_lag(self) -> AsyncIterator[None]:
        async def measure() -> None:
            while True:
                due_s = self._clock.now() + LAG_EVERY_S
                await asyncio.sleep(LAG_EVERY_S)
                lag_s = max(0.0, self._clock.now() - due_s)
                self.played.lags_s.append(lag_s)
                while (lag_s := lag_s - LAG_EVERY_S) > 0:  # of what was due meanwhile: a long wait is no single sample
                    self.played.lags_s.append(lag_s)

        task = asyncio.create_task(measure())
        try:
            yield
        finally:
            task.cancel()
