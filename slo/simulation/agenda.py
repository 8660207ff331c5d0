"""Virtual time: what is to happen, in the order of its moments; of one moment, in the order in which it was asked for.

It is the clock of everything that is simulated. Invariant: time never goes back, and the same questions in the same
order are answered in the same order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Agenda:
    """Events to come."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def now(self) -> float:
        """Return virtual seconds since the start."""
        return self._now_s

    def at(self, when_s: float, what: Callable[..., None], *args: Any) -> None:
        """Have `what` called with `args` at a moment that is not over; raises ValueError at one that is."""
        if when_s < self._now_s:
            raise ValueError(f"{when_s} s is over at {self._now_s} s")
        heapq.heappush(self._events, (when_s, next(self._numbers), what, args))

    def after(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """Have `what` called with `args` so many seconds from now."""
        heapq.heappush(self._events, (self._now_s + seconds, next(self._numbers), what, args))

    def step(self) -> bool:
        """Go to the next event and let it happen; False when there is none."""
        if not self._events:
            return False
        self._now_s, _, what, args = heapq.heappop(self._events)
        what(*args)
        return True
