"""Who gets blocks next: first come, first served, and a bounded queue behind the pool.

The engine grants or refuses a reservation at once; this waits for room on behalf of the request, so that a short burst
is a short queue and only a long one is a refusal. Invariant: nobody overtakes, nobody waits beyond the bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pagewire.core.engine_messages import Reserve, Reserved
from pagewire.core.errors import Overloaded
from pagewire.core.messages import SequenceSpec

RETRY_AFTER_S = 1.0


class Admission:
    """The queue in front of the pool. `reserve` asks the engine; `room` is called when blocks may have come free."""

    def __init__(self, reserve: Callable[[Reserve], Awaitable[Reserved]], max_waiting: int) -> None:
        self._reserve = reserve
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._turn = asyncio.Lock()  # fair: in the order of asking
        self._freed = asyncio.Event()

    @property
    def num_waiting(self) -> int:
        """Requests that have no blocks yet."""
        return self._num_waiting

    def room(self) -> None:
        """Blocks may have come free: whoever is first asks again."""
        self._freed.set()

    async def reserve(self, spec: SequenceSpec) -> Reserved:
        """Return the reservation once it is granted.

        Raises Overloaded when too many wait already, InvalidRequest when the request can never fit.
        """
        if self._num_waiting >= self._max_waiting:
            raise Overloaded(f"{self._num_waiting} requests wait for KV blocks already", retry_after_s=RETRY_AFTER_S)
        self._num_waiting += 1
        try:
            async with self._turn:
                while True:
                    self._freed.clear()
                    reserved = await self._reserve(Reserve(spec=spec))
                    if reserved.error is None:
                        return reserved
                    error = reserved.error.error()
                    if not isinstance(error, Overloaded):
                        raise error
                    await self._freed.wait()
        finally:
            self._num_waiting -= 1
