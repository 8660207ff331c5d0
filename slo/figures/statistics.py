"""Percentiles, and how sure one can be of a share. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A share lies between `low` and `high`, in so many of a hundred experiments as the confidence says."""

    low: float
    high: float

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{self.low:.1%} to {self.high:.1%}"


def wilson(good: int, total: int, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's interval of a share of which `good` of `total` were seen; raises ValueError on no sample."""
    if not 0 <= good <= total or total == 0:
        raise ValueError(f"{good} of {total} is no share")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = good / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    # At the ends the bound is exact; rounding must not put it on the wrong side.
    return Interval(0.0 if good == 0 else middle - half, 1.0 if good == total else middle + half)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of values in rising order, between two of them in proportion (Hyndman and Fan's type 7)."""
    if not ordered or not 0 <= percent <= 100:
        raise ValueError(f"no percentile {percent} of {len(ordered)} values")
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What values there were, in milliseconds; `count` of them."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def distribution_ms(seconds: Sequence[float]) -> Distribution | None:
    """Return the distribution of values given in seconds, None of no values."""
    ordered = sorted(1e3 * value for value in seconds)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )
