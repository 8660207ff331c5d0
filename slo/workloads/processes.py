"""When requests come: endless rising times of constant, Poisson and gamma processes, in seconds. Pure but for chance.

Invariant: one seed, one series. A recording has times of its own.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LEAST_CV, MOST_CV = 1e-3, 1e3  # beyond which no gamma distribution can be drawn from in floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Gaps between arrivals are drawn alone, `rate` a second on average.

    `cv` is their coefficient of variation: 0 is a constant gap, 1 a Poisson process, and the more above, the more they
    come in bursts (a gamma distribution of shape 1 / cv^2).
    """

    rate: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no process with ValueError."""
        if not 0 < self.rate < math.inf:
            raise ValueError(f"a rate of {self.rate:g} requests a second is none")
        if self.cv and not LEAST_CV <= self.cv <= MOST_CV:
            raise ValueError(
                f"a coefficient of variation of {self.cv:g} is none: it is 0, or from {LEAST_CV:g} to {MOST_CV:g}"
            )

    def times(self, seed: int) -> Iterator[float]:
        """Yield arrival times without end. The first is one gap after 0, or 0 where all gaps are equal."""
        draw = random.Random(f"{seed}/times")
        if self.cv == 0:
            yield from (number / self.rate for number in itertools.count())
        gap = self._gap(draw)
        at_s = 0.0
        while True:
            at_s += gap()
            yield at_s

    def _gap(self, draw: random.Random) -> Callable[[], float]:
        if self.cv == 1:
            return lambda: draw.expovariate(self.rate)
        shape = 1 / self.cv**2
        return lambda: draw.gammavariate(shape, 1 / (self.rate * shape))
