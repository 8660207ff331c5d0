"""Whether it is worth asking somebody who did not answer: after some failures in a row, not for a while.

Pure: time is a parameter. Invariant: while it is open one question goes out in each period, so that who answers again
is found; each failure of such a one doubles the period, up to the longest.
"""

from __future__ import annotations


class Breaker:
    """Opens after `failures` in a row, for `first_s` seconds and up to `longest_s`."""

    def __init__(self, *, failures: int = 5, first_s: float = 0.5, longest_s: float = 8.0) -> None:
        if failures < 1 or not 0 < first_s <= longest_s:
            raise ValueError(f"no breaker: {failures} failures, {first_s} to {longest_s} s")
        self._limit = failures
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0
        self._period_s = first_s
        self._next_s = 0.0
        self._is_trying = False  # one went out while it was open, and nothing is known of it

    @property
    def is_open(self) -> bool:
        """True while most questions are held back."""
        return self._failures >= self._limit

    def allows(self, now_s: float) -> bool:
        """True when a question may go out now; who is told so must say what came of it."""
        if not self.is_open:
            return True
        if now_s < self._next_s:
            return False
        self._is_trying = True
        self._next_s = now_s + self._period_s  # this one tries; nobody else until it is known
        return True

    def succeeded(self) -> None:
        """A question was answered."""
        self._failures = 0

    def given_up(self, now_s: float) -> None:
        """Nobody waits for the answer to a question any more: of whom was asked that says nothing."""
        if self._is_trying:
            self._is_trying, self._next_s = False, now_s

    def failed(self, now_s: float) -> None:
        """A question was not answered in time, or not at all."""
        was_open = self.is_open
        self._failures += 1
        if self._is_trying or not was_open:  # else it went out before it opened
            self._is_trying = False
            self._period_s = min(self._period_s * 2, self._longest_s) if was_open else self._first_s
            self._next_s = now_s + self._period_s
