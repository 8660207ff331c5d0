"""How many second attempts there may be, whatever fails.

Pure. Invariant: over any number of admitted requests there are at most `burst` second attempts, and `ratio` for each.
"""

from __future__ import annotations


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
