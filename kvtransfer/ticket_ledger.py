"""Sees that a ticket is used once.

Knows bytes and moments of the wall clock, which are passed in; knows nothing of what a ticket says. Invariant: what was
spent is never taken again before the moment at which no key would verify it any more.
"""

from __future__ import annotations

import math

from pagewire.core.errors import Unauthenticated

LEAST_SWEPT = 1024  # fewer are not worth looking through
SWEPT_FOR_S = 1.0  # so long nobody looks again, also where each question finds it full


class TicketLedger:
    """Remembers tickets that were used, until they expire; bounded, and closed when full.

    Those that expired are looked for when there are twice as many as were left the last time, and `LEAST_SWEPT`: so it
    holds no more than twice what has to be remembered, and what comes in a second, and each ticket costs a constant.
    """

    def __init__(self, *, max_tickets: int = 65536) -> None:
        self._max_tickets = max_tickets
        self._used: dict[bytes, float] = {}
        self._sweep_at = min(LEAST_SWEPT, max_tickets)
        self._swept_s = math.inf

    def __len__(self) -> int:
        return len(self._used)

    def spend(self, ticket: bytes, forget_at_s: float, wall_now_s: float) -> None:
        """Use a verified ticket up; raises Unauthenticated when it was used, or nothing can be remembered."""
        if ticket in self._used:
            raise Unauthenticated("the ticket was used before")
        if len(self._used) >= self._sweep_at and abs(wall_now_s - self._swept_s) >= SWEPT_FOR_S:
            self._swept_s = wall_now_s
            self._used = {used: until_s for used, until_s in self._used.items() if until_s >= wall_now_s}
            self._sweep_at = min(self._max_tickets, max(LEAST_SWEPT, 2 * len(self._used)))
        if len(self._used) >= self._max_tickets:
            raise Unauthenticated(f"{self._max_tickets} tickets are in use: no more are taken")
        self._used[ticket] = forget_at_s
