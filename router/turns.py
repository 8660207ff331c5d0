"""Whose turn it is to be prepared: a few requests at a time, in the order in which they came.

To read, check and tokenize a request is work for the one thread that there is, and where it goes is a question to
Redis. Of many that come at once, all would be late together; taking turns, half of them are at their pods in half the
time. Who would wait for too long is told at once, which costs next to nothing: under overload the turns would be the
queue, and all who leave it late. Invariant: no more than `most` turns are taken and not over.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from types import TracebackType

from pagewire.core.clock import Clock
from pagewire.router.drain_rate import bounded_s
from pagewire.router.refusals import Reason, Refused

PACE = 32  # latest turns by which the pace is known
LEAST_PACE = 8  # with fewer it is not


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
    """All turns of one router, `most` at a time; `patience_s` says how long somebody may wait for one now."""

    def __init__(self, most: int, clock: Clock, patience_s: Callable[[], float] = lambda: math.inf) -> None:
        self._room = asyncio.Semaphore(most)
        self._clock = clock
        self._patience_s = patience_s
        self._num_waiting = 0
        self._began_s: deque[float] = deque(maxlen=PACE)  # of the latest turns that were waited for, without a break

    @property
    def wait_s(self) -> float:
        """The seconds that whoever comes now should wait, at the pace of the latest turns; 0 where none is known."""
        if len(self._began_s) < LEAST_PACE:
            return 0.0
        return self._num_waiting * (self._began_s[-1] - self._began_s[0]) / (len(self._began_s) - 1)

    async def take(self, here_for_s: float = 0.0) -> Turn:
        """Wait for a turn and return it; the request has been here for `here_for_s`, and nobody has looked at it.

        Raises Refused where all of that should take too long.
        """
        asked_s, wait_s = self._clock.now() - here_for_s, self.wait_s
        if (here_for_s or wait_s) and here_for_s + wait_s > self._patience_s():
            text = f"{self._num_waiting} wait to be read, {here_for_s + wait_s:.3f} s in all: too much of the TTFT"
            raise Refused(Reason.SLO_TTFT, text, retry_after_s=bounded_s(wait_s))
        if not self._room.locked():
            self._began_s.clear()
        self._num_waiting += 1
        try:
            await self._room.acquire()
        finally:
            self._num_waiting -= 1
        self._began_s.append(self._clock.now())
        return Turn(self._room, asked_s)
