"""Two runs held against each other: by how much the second differs, and whether that can be told at all.

Percentiles by a bootstrap that draws stretches of requests that were due one after the other, since neighbours in a
queue share its length; shares by Newcombe's hybrid of two Wilson intervals. Invariant: one seed, one answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagewire.slo.figures.experiment import Trial
from pagewire.slo.figures.objectives import MEASURES
from pagewire.slo.figures.record import NAMES
from pagewire.slo.figures.statistics import CONFIDENCE
from pagewire.slo.figures.summary import Attainment

RESAMPLES = 2000
BEYOND = 5  # values that lie beyond a percentile, at least: of fewer nothing is concluded
PERCENTS = (50.0, 95.0)

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`second` less `first` lies between `low` and `high`, with CONFIDENCE; both None where there is too little.

    Shares are in points of a hundred, spans in milliseconds, as `unit` says.
    """

    what: str
    unit: str
    first: float
    second: float
    low: float | None
    high: float | None
    more_is_better: bool = False

    @property
    def value(self) -> float:
        """The difference that was seen."""
        return self.second - self.first

    @property
    def is_told(self) -> bool:
        """Whether 0 lies outside: that they differ at all."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def says(self) -> str:
        """What it comes to, in words."""
        if self.low is None:
            return "too few requests to tell"
        if not self.is_told:
            return "no difference can be told"
        return "the second is better" if (self.value > 0) == self.more_is_better else "the second is worse"


def compare(first: Trial, second: Trial, *, seed: int = 0) -> list[Difference]:
    """Return the differences of what was attained and of the percentiles of every measure that both have."""
    one, other = first.summary.all_attained, second.summary.all_attained
    low, high = newcombe(one, other)
    found = [
        Difference(
            what="attainment", unit="points", first=100 * one.share, second=100 * other.share, low=100 * low,
            high=100 * high, more_is_better=True,
        )
    ]  # fmt: skip
    draw = np.random.default_rng(seed)
    for measure in MEASURES:
        pair = [_values_ms(each, measure) for each in (first, second)]
        if not all(map(len, pair)):
            continue
        seen = [np.percentile(values, PERCENTS) for values in pair]
        drawn = [resampled(values, PERCENTS, draw) for values in pair]
        for place, percent in enumerate(PERCENTS):
            is_enough = all(len(values) * (1 - percent / 100) >= BEYOND for values in pair)
            ends = interval(drawn[1][:, place] - drawn[0][:, place]) if is_enough else (None, None)
            found.append(
                Difference(
                    what=f"{NAMES[measure]} p{percent:g}", unit="ms", first=float(seen[0][place]),
                    second=float(seen[1][place]), low=ends[0], high=ends[1],
                )
            )  # fmt: skip
    return found


def newcombe(first: Attainment, second: Attainment) -> tuple[float, float]:
    """Return between what the second share less the first lies (Newcombe 1998, method 10)."""
    one, other = first.interval, second.interval
    middle = second.share - first.share
    below = math.hypot(second.share - other.low, one.high - first.share)
    above = math.hypot(other.high - second.share, first.share - one.low)
    return middle - below, middle + above


def resampled(
    values: Values, percents: Sequence[float], draw: np.random.Generator, *, stretch: int | None = None
) -> Values:
    """Return [RESAMPLES, len(percents)]: percentiles of as many values, drawn in stretches of neighbours, in a ring.

    A stretch is the cube root of their number unless told.
    """
    size = len(values)
    stretch = stretch or max(1, round(size ** (1 / 3)))
    steps, count = np.arange(stretch), math.ceil(size / stretch)
    found = np.empty((RESAMPLES, len(percents)))
    for place in range(RESAMPLES):
        starts = draw.integers(0, size, size=count)
        chosen = ((starts[:, None] + steps) % size).ravel()[:size]
        found[place] = np.percentile(values[chosen], percents)
    return found


def interval(drawn: Values) -> tuple[float, float]:
    """Return between what values the middle of a bootstrap's differences lies, with CONFIDENCE."""
    rest = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(drawn, (rest, 100 - rest))
    return float(low), float(high)


def _values_ms(trial: Trial, measure: str) -> Values:
    """Return a measure of the answered requests of the window, in the order in which they were due."""
    counted = sorted((each for each in trial.counted if each.is_answered), key=lambda each: each.intended_s)
    return np.array([1e3 * value for each in counted if (value := each.value_s(measure)) is not None])
