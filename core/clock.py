"""Time as a parameter. Everything that decides takes a `Clock`, so that tests and simulation can own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock of this process."""

    def now(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        ...


class MonotonicClock:
    """The machine's own monotonic clock."""

    def now(self) -> float:
        """Return `time.monotonic()` in seconds."""
        return time.monotonic()


class ManualClock:
    """A clock that moves when told to."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """Return the time that was set, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; raises ValueError on a negative step."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s")
        self._now_s += seconds
