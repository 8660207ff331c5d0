"""Which pods of a group should have no requests for a while: those whose breaker is open, or that differ from the rest.

Pure: time is a parameter. Knows names and results of attempts. A pod's breaker opens after failures in a row; or in a
sweep, when it fails much more often than the rest of its group, or takes much longer for a token. Of those that should
have nothing, only so many are ejected that their share stays below the ceiling, and none while too few are healthy:
a cluster in trouble as a whole is not helped by fewer pods. Invariants: of n pods at most `max_ejected(n)` are ejected,
so never all; in panic none is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

from pagewire.router.breaker import Breaker, State

SWEEP_S = 5.0
HALF_LIFE_S = 30.0  # of what attempts on a pod have shown
MIN_ATTEMPTS = 10.0  # before a pod is compared, and before others are compared with it
FAILURE_SHARE = 0.3  # more than the rest of the group
SLOWNESS = 4.0  # times the median of the group's seconds per token
SMOOTHING = 0.1


class Cause(StrEnum):
    """Why a pod is ejected."""

    FAILURES_IN_A_ROW = "failures_in_a_row"
    FAILURE_RATE = "failure_rate"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When pods are ejected, and how many at most."""

    failures: int = 5  # in a row
    open_s: float = 10.0
    max_share: float = 0.3  # of a group that may be ejected; one pod may always be, the last one never
    panic_share: float = 0.5  # of the group that must be healthy, or all are used

    def max_ejected(self, num_pods: int) -> int:
        """Return how many of a group may be ejected."""
        return max(0, min(num_pods - 1, max(1, int(self.max_share * num_pods))))


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt ended: well, badly, or None for what says nothing; seconds per later token, 0 when unknown."""

    is_good: bool | None
    token_s: float = 0.0


class _Record:
    """What attempts on one pod have shown, fading."""

    def __init__(self, rules: Rules, now_s: float) -> None:
        self.breaker = Breaker(failures=rules.failures, open_s=rules.open_s)
        self.attempts = 0.0
        self.failures = 0.0
        self.token_s = 0.0
        self._at_s = now_s

    @property
    def failure_share(self) -> float:
        """Of one that has had attempts."""
        return self.failures / self.attempts

    def fade(self, now_s: float) -> None:
        share = 0.5 ** ((now_s - self._at_s) / HALF_LIFE_S)
        self.attempts *= share
        self.failures *= share
        self._at_s = now_s

    def note(self, result: Result, now_s: float) -> None:
        self.fade(now_s)
        self.attempts += 1
        self.failures += result.is_good is False
        if result.token_s > 0:
            self.token_s += (SMOOTHING if self.token_s else 1.0) * (result.token_s - self.token_s)

    def clear(self) -> None:
        """What led to an ejection must not lead to the next one."""
        self.attempts = self.failures = self.token_s = 0.0


class Outliers:
    """The records of one group of pods."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._records: dict[str, _Record] = {}
        self._swept_s = 0.0

    def begin(self, pod: str, now_s: float) -> int:
        """An attempt on a pod begins; return what `end` has to be told."""
        record = self._records.get(pod)
        if record is None:
            record = self._records[pod] = _Record(self._rules, now_s)
        return record.breaker.begin(now_s)

    def end(self, pod: str, turn: int, result: Result, now_s: float) -> dict[str, Cause]:
        """An attempt ended; return the pods that should have no requests from now on, and why."""
        record = self._records.get(pod)
        if record is None:
            return {}
        found: dict[str, Cause] = {}
        if result.is_good is not None:
            record.note(result, now_s)
        if record.breaker.end(turn, result.is_good, now_s):
            record.clear()
            found[pod] = Cause.FAILURES_IN_A_ROW
        if now_s - self._swept_s >= SWEEP_S:
            self._swept_s = now_s
            found |= self._sweep(now_s)
        return found

    def forget(self, pod: str) -> None:
        """The pod is gone."""
        self._records.pop(pod, None)

    def state(self, pod: str, now_s: float) -> State:
        """Return a pod's state."""
        record = self._records.get(pod)
        return record.breaker.state(now_s) if record is not None else State.CLOSED

    def ejected(self, pods: Collection[str], num_known: int, now_s: float) -> frozenset[str]:
        """Return who of `pods`, which are all that could be used, is not to be; `num_known` counts the others too."""
        records = self._records
        barred = [pod for pod in pods if pod in records and not records[pod].breaker.takes(now_s)]
        if not barred:
            return frozenset()
        # Those that are on probation and busy with it come first where not all can be kept out.
        barred.sort(key=lambda pod: (records[pod].breaker.until_s, pod), reverse=True)
        out = frozenset(barred[: self._rules.max_ejected(len(pods))])
        is_panic = len(pods) - len(out) < self._rules.panic_share * num_known
        return frozenset() if is_panic else out

    def _sweep(self, now_s: float) -> dict[str, Cause]:
        for record in self._records.values():
            record.fade(now_s)
        compared = {
            pod: record
            for pod, record in self._records.items()
            if record.attempts >= MIN_ATTEMPTS and record.breaker.state(now_s) is State.CLOSED
        }
        if not compared:
            return {}
        # Of two, the better one is the measure.
        failing = median_low(record.failure_share for record in compared.values())
        pace_s = median_low(record.token_s for record in compared.values())
        found: dict[str, Cause] = {}
        for pod, record in compared.items():
            if record.failure_share > failing + FAILURE_SHARE:
                found[pod] = Cause.FAILURE_RATE
            elif pace_s > 0 and record.token_s > SLOWNESS * pace_s:
                found[pod] = Cause.LATENCY
        for pod in found:
            compared[pod].breaker.trip(now_s)
            compared[pod].clear()
        return found
