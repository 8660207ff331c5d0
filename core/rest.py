"""How long nothing was measured of something, and how much of what was measured is believed still.

What is thought too dear is not used, and what is not used is not measured: unless belief faded, what was slow once
would be thought so ever after. Pure: durations in seconds come as parameters. Invariant: belief only ever shrinks.
"""

from __future__ import annotations

import math

REST_S = 60.0  # without anything new, before belief begins to fade
HALF_LIFE_S = 300.0  # of it, from then on


class Rest:
    """The time since the last measurement."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @property
    def belief(self) -> float:
        """What share of what was measured is believed now, 0 to 1."""
        return math.exp2(-max(0.0, self._seconds - REST_S) / HALF_LIFE_S)

    def ends(self) -> None:
        """Something was measured."""
        self._seconds = 0.0

    def goes_on(self, seconds: float) -> float:
        """So much time has passed; return what share of the belief before it, 0 to 1, is left after it."""
        self._seconds += seconds
        return math.exp2(-max(0.0, min(seconds, self._seconds - REST_S)) / HALF_LIFE_S)


def faded(measured: float, prior: float, left: float) -> float:
    """Return a figure of whose part above the prior only `left` of 1 is left; what is below it stays."""
    return measured - max(0.0, measured - prior) * (1 - left)
