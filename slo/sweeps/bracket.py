"""The highest request rate at which a share of requests is good, closed in on by doubling and then halving. Pure.

Knows no cluster: it is asked for the next rate and told what a probe at it came to. It takes attainment to fall as the
rate rises, and chance to blur it. Invariant: the next rate follows from the evidence alone, so a search that was
stopped goes on as if it had not been; a rate is asked for once, and again only while its interval straddles a target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pagewire.slo.figures.summary import Attainment

LEAST_PRECISION = 0.01
DIGITS = 4  # of a rate: more could not be told apart


class Verdict(StrEnum):
    """What a probe says of a target: its interval lies at or above it, below it, or straddles it."""

    MET = "met"
    MISSED = "missed"
    UNRESOLVED = "unresolved"


class Evidence:
    """What probes came to, by rate in requests a second; those of one rate are pooled."""

    def __init__(self) -> None:
        self._pooled: dict[float, Attainment] = {}
        self._counts: dict[float, int] = {}

    @property
    def rates(self) -> list[float]:
        """The rates that were probed, in rising order."""
        return sorted(self._pooled)

    def tell(self, rate: float, attained: Attainment) -> None:
        """Add what a probe came to."""
        before = self._pooled.get(rate, Attainment(good=0, total=0))
        self._pooled[rate] = Attainment(good=before.good + attained.good, total=before.total + attained.total)
        self._counts[rate] = self.count(rate) + 1

    def count(self, rate: float) -> int:
        """Return how many probes there were at a rate."""
        return self._counts.get(rate, 0)

    def attained(self, rate: float) -> Attainment:
        """Return what they came to together; raises KeyError where there was none."""
        return self._pooled[rate]

    def verdict(self, rate: float, target: float) -> Verdict:
        """Return what the probes at a rate say of a target."""
        interval = self.attained(rate).interval
        if interval.low >= target:
            return Verdict.MET
        return Verdict.MISSED if interval.high < target else Verdict.UNRESOLVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where attainment falls below `target`, in requests a second, None where no probe shows it.

    `met` is the highest rate whose share was at least the target, `missed` the next one, whose share was below. Chance
    may have put either on the wrong side unless `is_resolved`. `sure_met` and `sure_missed` are the nearest rates whose
    intervals say so.
    """

    target: float
    met: float | None
    missed: float | None
    sure_met: float | None
    sure_missed: float | None
    is_resolved: bool

    def __str__(self) -> str:
        """Return it as people read it."""
        if self.met is None and self.missed is None:
            return "nothing was probed"
        if not self.is_resolved:
            if self.sure_missed is None:
                return f"unresolved: {'any rate' if self.sure_met is None else f'{self.sure_met:g}/s or more'}"
            return f"unresolved: {self.sure_met or 0:g} to {self.sure_missed:g}/s"
        if self.met is None:
            return f"below {self.missed:g}/s"
        return f"at least {self.met:g}/s" if self.missed is None else f"{self.met:g}/s"


def crossing(evidence: Evidence, target: float) -> Crossing:
    """Return what the evidence says of a target; where a surely met rate lies above a surely missed one, unresolved."""
    rates = evidence.rates
    verdicts = {rate: evidence.verdict(rate, target) for rate in rates}
    sure_missed = next((rate for rate in rates if verdicts[rate] is Verdict.MISSED), None)
    below = [rate for rate in rates if sure_missed is None or rate < sure_missed]
    sure_met = next((rate for rate in reversed(below) if verdicts[rate] is Verdict.MET), None)
    blurred = [rate for rate in below if sure_met is None or rate > sure_met]
    missed = next((rate for rate in blurred if evidence.attained(rate).share < target), sure_missed)
    met = next((rate for rate in reversed(below) if missed is None or rate < missed), None)
    is_contradicted = any(verdict is Verdict.MET for rate, verdict in verdicts.items() if rate not in below)
    is_resolved = bool(rates) and not is_contradicted and met == sure_met and missed == sure_missed
    return Crossing(
        target=target, met=met, missed=missed, sure_met=sure_met, sure_missed=sure_missed, is_resolved=is_resolved
    )


class Search(Protocol):
    """Who says which rate is probed next."""

    def next_rate(self, evidence: Evidence) -> float | None:
        """Return it in requests a second, None once nothing is left to be learnt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracketing:
    """Doubles or halves from `first` until a rate is met and another missed, then halves what lies between.

    Ends for each target once both are within `precision` (0.1: a tenth) of one another and resolved, or were probed
    `repeats` times. Rates stay between `lowest` and `highest`.
    """

    targets: tuple[float, ...]
    first: float
    lowest: float
    highest: float
    precision: float
    repeats: int

    def __post_init__(self) -> None:
        """Refuse what would not end, or could not begin, with ValueError."""
        _check(self.targets, self.repeats)
        if not 0 < self.lowest <= self.first <= self.highest:
            raise ValueError(f"the first rate, {self.first:g}, is not between {self.lowest:g} and {self.highest:g}")
        if not self.precision >= LEAST_PRECISION:
            raise ValueError(f"a precision of {self.precision:g} is below {LEAST_PRECISION:g}")

    def next_rate(self, evidence: Evidence) -> float | None:
        """Return the next rate, None once every target is closed in on."""
        if not evidence.rates:
            return self.first
        found = (self._next(evidence, crossing(evidence, target)) for target in self.targets)
        return next((rate for rate in found if rate is not None), None)

    def _next(self, evidence: Evidence, at: Crossing) -> float | None:
        if at.met is not None and at.missed is not None:
            if at.missed > at.met * (1 + self.precision):
                return _tidy((at.met * at.missed) ** 0.5)
        elif at.met is not None and at.met < self.highest:
            return min(_tidy(2 * at.met), self.highest)
        elif at.missed is not None and at.missed > self.lowest:
            return max(_tidy(at.missed / 2), self.lowest)
        return _blurred(evidence, (at.met, at.missed), (at.target,), self.repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """These rates, each of them up to `repeats` times while it is unresolved for one of the targets."""

    targets: tuple[float, ...]
    rates: tuple[float, ...]
    repeats: int

    def __post_init__(self) -> None:
        """Refuse what is no list of rates with ValueError."""
        _check(self.targets, self.repeats)
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates lie above 0: {', '.join(map(str, self.rates)) or 'there are none'}")

    def next_rate(self, evidence: Evidence) -> float | None:
        """Return the first of the rates about which more can be learnt, None where there is none."""
        fresh = next((rate for rate in self.rates if not evidence.count(rate)), None)
        return _blurred(evidence, self.rates, self.targets, self.repeats) if fresh is None else fresh


def _blurred(
    evidence: Evidence, rates: Iterable[float | None], targets: tuple[float, ...], repeats: int
) -> float | None:
    """Return the first of `rates` that is unresolved for a target and was probed less than `repeats` times."""
    for rate in rates:
        if rate is None or evidence.count(rate) >= repeats:
            continue
        if any(evidence.verdict(rate, target) is Verdict.UNRESOLVED for target in targets):
            return rate
    return None


def _check(targets: tuple[float, ...], repeats: int) -> None:
    if not targets or not all(0 < target < 1 for target in targets):
        raise ValueError(f"attainments lie between 0 and 1: {', '.join(map(str, targets)) or 'there are none'}")
    if repeats < 1:
        raise ValueError(f"{repeats} probes at a rate are none")


def _tidy(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")
