"""Who gets blocks next: in the order of the pod's scheduling policy, and a bounded queue before the pool.

The engine grants or refuses a reservation at once; this waits for room on behalf of the request, so that a short burst
is a short queue and only a long one is a refusal. Invariants: only the first in rank asks, and its turn comes whatever
arrives (`scheduling_policy`); nobody waits beyond the bound.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pagewire.core.clock import Clock
from pagewire.core.engine_messages import Reserve, Reserved
from pagewire.core.errors import Overloaded
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.scheduling_policy import SchedulingPolicy

RETRY_AFTER_S = 1.0


@dataclass(slots=True, eq=False)
class _Place:
    """One request in the queue; `turn` is set when it may be worth asking."""

    rank: tuple[float, int]
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class Admission:
    """The queue in front of the pool. `reserve` asks the engine; `room` is called when blocks may have come free."""

    def __init__(
        self,
        reserve: Callable[[Reserve], Awaitable[Reserved]],
        max_waiting: int,
        scheduling: SchedulingPolicy,
        clock: Clock,
    ) -> None:
        self._reserve = reserve
        self._max_waiting = max_waiting
        self._scheduling = scheduling
        self._clock = clock
        self._arrivals = 0
        self._places: list[_Place] = []  # first in rank first

    @property
    def num_waiting(self) -> int:
        """Requests that have no blocks yet."""
        return len(self._places)

    def room(self) -> None:
        """Blocks may have come free: whoever is first asks again."""
        if self._places:
            self._places[0].turn.set()

    async def reserve(self, spec: SequenceSpec) -> Reserved:
        """Return the reservation once it is granted.

        Raises Overloaded when too many wait already, InvalidRequest when the request can never fit.
        """
        if len(self._places) >= self._max_waiting:
            raise Overloaded(f"{len(self._places)} requests wait for KV blocks already", retry_after_s=RETRY_AFTER_S)
        place = _Place(self._rank(spec))
        insort(self._places, place, key=lambda each: each.rank)
        self.room()
        try:
            while True:
                await place.turn.wait()
                place.turn.clear()
                if self._places[0] is not place:
                    continue
                reserved = await self._reserve(Reserve(spec=spec))
                if reserved.error is None:
                    return reserved
                error = reserved.error.error()
                if not isinstance(error, Overloaded):
                    raise error
        finally:
            self._places.remove(place)
            self.room()

    def _rank(self, spec: SequenceSpec) -> tuple[float, int]:
        self._arrivals += 1
        handicap_s = self._scheduling.handicap_s(spec.priority, len(spec.tokens) + len(spec.output))
        return self._clock.now() + handicap_s, self._arrivals
