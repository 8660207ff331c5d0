"""One call's tries: at which router, within what time, after what pause, and when it is given up. Pure.

    begin() -> place and time left    failed() -> a pause, then begin() again; or raises what ended the call
                                      succeeded()

A router that is lost, or drains, is left at once for another that was not tried yet; everything else that another try
can help waits first, at least as long as the server said. Invariants: no more tries than the policy allows, but
that one which allows a second ends at no lost router while others are left untried; none beyond the deadline; each
after the first is paid from the budget that all calls of a client share.
"""

from __future__ import annotations

from pagewire.client.retry import LONGEST_S, RetryBudget, RetryPolicy
from pagewire.client.routers import Routers
from pagewire.core.errors import DeadlineExceeded, Draining, PagewireError, RouterLost


class Attempts:
    """The tries of one call; times are seconds on the caller's monotonic clock."""

    def __init__(
        self, *, timeout_s: float | None, policy: RetryPolicy, budget: RetryBudget, routers: Routers, now_s: float
    ) -> None:
        self.count = 0
        timeout_s = None if timeout_s is None else min(timeout_s, LONGEST_S)  # an infinite one lasts as long
        self._total_s = timeout_s
        self._deadline_s = None if timeout_s is None else now_s + timeout_s
        self._policy = policy
        self._budget = budget
        self._routers = routers
        self._place = 0
        self._left: set[int] = set()  # routers that this call left

    def begin(self, now_s: float) -> tuple[int, float | None]:
        """Begin a try: return the router's place and the seconds left, None for no end.

        Raises DeadlineExceeded when nothing is left.
        """
        left_s = None if self._deadline_s is None else self._deadline_s - now_s
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded(f"no answer within {self._total_s:g} s")
        self.count += 1
        self._place = self._routers.choose(now_s, self._left)
        return self._place, left_s

    def failed(self, error: PagewireError, *, now_s: float, draw: float) -> float:
        """Return the pause in seconds before the next try, or raise `error` where there is none.

        `draw` is uniform in [0, 1).
        """
        delay_s = self._policy.delay_s(error, self.count, draw)
        if self.leaves(error, now_s=now_s) and self._policy.max_attempts > 1:
            delay_s = 0.0
        if delay_s is None or self._is_over(now_s + delay_s) or not self._budget.spend():
            raise error
        return delay_s

    def leaves(self, error: PagewireError, *, now_s: float) -> bool:
        """Take note of an error; True where it was the router's alone and another is there that was not tried."""
        if not isinstance(error, RouterLost | Draining):
            return False
        self._routers.lost(self._place, now_s)
        self._left.add(self._place)
        return self._routers.has_other(now_s, self._left)

    def succeeded(self) -> None:
        """The call is answered."""
        self._budget.earn()
        self._routers.answered(self._place)

    def _is_over(self, at_s: float) -> bool:
        return self._deadline_s is not None and at_s >= self._deadline_s
