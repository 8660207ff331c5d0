"""Whose turn it is to be prepared: a few requests at a time, in the order in which they came.

To read, check and tokenize a request is work for the one thread that there is, and where it goes is a question to
Redis. Of many that come at once, all would be late together; taking turns, half of them are at their pods in half the
time. Invariant: no more than `most` turns are taken and not over.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from pagewire.core.clock import Clock


class Turn:
    """One turn, over at the latest when its context ends; `asked_s` is when whoever has it came."""

    def __init__(self, room: asyncio.Semaphore, asked_s: float) -> None:
        self.asked_s = asked_s
        self._room = room
        self._is_over = False

    def __enter__(self) -> Turn:
        """Return the turn itself."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """End it."""
        self.over()

    def over(self) -> None:
        """Let the next one begin: nothing is left to do, or something that others need not wait for."""
        if not self._is_over:
            self._is_over = True
            self._room.release()


class Turns:
    """All turns of one router, `most` at a time."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._room = asyncio.Semaphore(most)
        self._clock = clock

    async def take(self) -> Turn:
        """Wait for a turn and return it."""
        asked_s = self._clock.now()
        await self._room.acquire()
        return Turn(self._room, asked_s)
