"""How many requests the router works on at once, and how many second attempts it allows itself.

Pure: time is a parameter. Knows counts, nothing of requests. Invariant: every `enter` that returned is followed by
exactly one `leave`; `active` is their difference.
"""

from __future__ import annotations

from pagewire.core.errors import Overloaded

SMOOTHING = 0.1  # weight of the newest duration in the moving average


class Admission:
    """A bounded number of concurrent requests; the rest is refused at once, with a time to come back."""

    def __init__(self, max_concurrent: int) -> None:
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, is {max_concurrent}")
        self._max_concurrent = max_concurrent
        self._active = 0
        self._duration_s = 1.0

    @property
    def active(self) -> int:
        """How many requests are admitted now."""
        return self._active

    def enter(self) -> None:
        """Take a place; raises Overloaded, with the time in which one place should come free, when there is none."""
        if self._active >= self._max_concurrent:
            raise Overloaded(
                f"{self._active} requests are running, which is the bound", retry_after_s=self.retry_after_s()
            )
        self._active += 1

    def leave(self, duration_s: float) -> None:
        """Give the place back after `duration_s` seconds."""
        self._active -= 1
        self._duration_s += SMOOTHING * (duration_s - self._duration_s)

    def retry_after_s(self) -> float:
        """Return the seconds after which another try is worth it: at least one, at most thirty."""
        return min(30.0, max(1.0, self._duration_s / 2))


class RetryBudget:
    """Second attempts as a share of first ones, so that a cluster in trouble is not asked twice for everything.

    Up to `burst` attempts are kept in reserve: a pod that dies takes many requests with it at once, and all may go on.
    """

    def __init__(self, *, ratio: float, burst: int) -> None:
        self._ratio = ratio
        self._burst = float(burst)
        self._left = float(burst)

    def earn(self) -> None:
        """A request was admitted."""
        self._left = min(self._burst, self._left + self._ratio)

    def spend(self) -> bool:
        """Take one second attempt out of the budget; False when it is used up."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
