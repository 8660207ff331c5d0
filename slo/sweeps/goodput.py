"""The highest request rate at which a target share of requests meets its objectives: where the curve crosses. Pure.

Invariant: a rate is told only between rates that were tried; beyond them it is a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagewire.slo.figures.experiment import Trial
from pagewire.slo.figures.summary import Attainment
from pagewire.slo.sweeps.bracket import Evidence

TARGETS = (0.90, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class RatePoint:
    """What was attained at a rate, in requests a second."""

    rate_per_s: float
    attained: Attainment


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Where a curve falls below `target`, and where Wilson's lower and upper curve do, in requests a second.

    0 is a curve that was below at the lowest rate that was tried, None one that was not at the highest.
    """

    target: float
    rate_per_s: float | None
    low_per_s: float | None
    high_per_s: float | None
    lowest_per_s: float
    highest_per_s: float

    @property
    def least_per_s(self) -> float:
        """The rate that is sure to have been carried: where nothing fell, the highest that was tried."""
        return self.highest_per_s if self.rate_per_s is None else self.rate_per_s

    @property
    def is_crossing(self) -> bool:
        """Whether the curve crosses between rates that were tried."""
        return bool(self.rate_per_s)

    def __str__(self) -> str:
        """Return it with its interval, as people read it."""
        ends = [self._end(each) for each in (self.low_per_s, self.rate_per_s, self.high_per_s)]
        return f"{ends[1]}/s" if len({*ends}) == 1 else f"{ends[1]}/s ({ends[0]} to {ends[2]})"

    def _end(self, rate_per_s: float | None) -> str:
        if rate_per_s is None:
            return f"at least {self.highest_per_s:.3g}"
        return f"{rate_per_s:.3g}" if rate_per_s else f"below {self.lowest_per_s:.3g}"


def rate_points(trials: Iterable[Trial]) -> list[RatePoint]:
    """Return the attainment at each rate, in rising order; trials of one rate are pooled."""
    evidence = Evidence()
    for trial in trials:
        evidence.tell(trial.rate_per_s, trial.summary.all_attained)
    return [RatePoint(rate, evidence.attained(rate)) for rate in evidence.rates]


def goodput(points: Sequence[RatePoint], target: float) -> Goodput:
    """Return where the curve through `points` (one at least, in rising order) falls below `target`, in proportion."""
    rates = [point.rate_per_s for point in points]
    intervals = [point.attained.interval for point in points]
    return Goodput(
        target=target,
        rate_per_s=_crossing(rates, [point.attained.share for point in points], target),
        low_per_s=_crossing(rates, [each.low for each in intervals], target),
        high_per_s=_crossing(rates, [each.high for each in intervals], target),
        lowest_per_s=rates[0],
        highest_per_s=rates[-1],
    )


def _crossing(rates: Sequence[float], shares: Sequence[float], target: float) -> float | None:
    for place, share in enumerate(shares):
        if share < target:
            if place == 0:
                return 0.0
            before = shares[place - 1]
            return rates[place - 1] + (rates[place] - rates[place - 1]) * (before - target) / (before - share)
    return None
