"""Refuses what would miss its SLO, for as long as predictions of that have proved right; counts and learns until then.

Pure: time is a parameter. Knows predicted and actual seconds, nothing of how they come about. Each objective (TTFT, the
gap between the first two tokens, TPOT) has a judge of its own with its own record. A judge is

    active   when of the last `VIOLATORS` requests that it would have refused at least `PRECISION` proved it right, none
             of them older than `MEMORY_S`, and when the median of predicted / actual over the last `SAMPLES` requests
             of any kind is at most `BIAS`
    shadow   otherwise: everything passes, and what it would have refused is compared with what became of it

That all take longer than predicted, by whatever factor, keeps no judge from refusing: so it is under an overload that
nobody foresaw, and letting everybody in then would make it worse.

A judge refuses what is too likely to miss, not what should just miss:

    predicted x margin > limit        margin = actual / predicted that `KEPT` of those near the limit kept to

Under overload the queue becomes as long as the gate lets it. At the limit itself any error would make half of those
late who are let in, and more, for it is those of whom too little is predicted that get in. With the margin the queue
stays shorter by as much as predictions err, at no cost in what is served. Once a limit on those that wait is known, or
on those that are in for the other objectives (`places.py`), that holds the queue, and no margin above 1 counts:
predictions that erred for a moment would refuse while there is room, for as long as the record remembers them.

A request that it would have refused proves it right by missing, or by taking at least 1 / `WRONG` of what was
predicted, times the margin where that is below 1: of those near the limit most would have been in time. Near it is who
took half of it, or was to take half of the least that is refused: a margin that grew in a bad moment refuses far below
the limit, and they show that it is over.

An active judge lets a probe through: every `PROBE_EVERY`th request that it would refuse, and the first one after
`PROBE_S`. So it learns that it is wrong: from the moment on which predictions are, by more than `WRONG`, the third
probe that shows it ends the refusing. It refuses only within `PROBE_S` after a probe: in all, such predictions refuse
requests for no longer than 3 x `PROBE_S` and the time of one measurement, and no more of them than 3 x `PROBE_EVERY`
and those that come during one measurement. From some five times the capacity on, probes are a good part of what is
served: there only a bound on places helps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from pagewire.core.clock import Clock
from pagewire.router.concurrency_limit import LATE, ROUND
from pagewire.router.drain_rate import bounded_s
from pagewire.router.places import Place, Places
from pagewire.router.prediction import Prediction
from pagewire.router.refusals import Reason, Refused

VIOLATORS = 20
PRECISION = 0.9
SAMPLES = 64
BIAS = 1.5
WRONG = 2.0
KEPT = 0.95
LEAST_NEAR = 20  # requests near the limit, before the likelihood is known
MOST_MARGIN = 4.0
MEMORY_S = 600.0
PROBE_EVERY = 10
PROBE_S = 5.0
READ_WITHIN = 0.25  # of the TTFT objective, while it is missed: the rest is for the pods
LEAST_S = 1e-4  # shorter times are equal, for the ratio of predicted and actual


class Tally(Protocol):
    """Who counts what the gate does; `slo` is "ttft", "gap" or "tpot"."""

    def slo_outcome(self, slo: str, *, predicted_miss: bool, actual_miss: bool) -> None:
        """A request that was let in has met or missed an objective."""
        ...

    def slo_probe(self, slo: str) -> None:
        """A request passed that would have been refused, to learn from it."""
        ...


class SloJudge:
    """One objective: the seconds that something may take. `is_bounded` says whether something else holds the crowd."""

    def __init__(self, limit_s: float, is_bounded: Callable[[], bool] = lambda: False) -> None:
        self.limit_s = limit_s
        self._is_bounded = is_bounded
        self._violators: deque[tuple[float, bool]] = deque(maxlen=VIOLATORS)  # when measured, whether that was right
        self._took: deque[float] = deque(maxlen=SAMPLES)  # actual / predicted
        self._took_near: deque[float] = deque(maxlen=SAMPLES)  # the same of those near the limit
        self._median = 1.0
        self._margin = 1.0
        self._refused = 0  # since the last probe
        self._probed_s = -math.inf

    @property
    def refuses_from_s(self) -> float:
        """The longest prediction that is kept with the likelihood asked for; an active judge refuses beyond it."""
        return self.limit_s / (min(1.0, self._margin) if self._is_bounded() else self._margin)

    def is_active(self, now_s: float) -> bool:
        """True while predictions of a miss have proved right."""
        while self._violators and now_s - self._violators[0][0] > MEMORY_S:
            self._violators.popleft()
        right = sum(was_right for _, was_right in self._violators)
        is_small = self._median >= 1 / BIAS
        return len(self._violators) == VIOLATORS and right >= PRECISION * VIOLATORS and is_small

    def is_probe_due(self, now_s: float) -> bool:
        """True when the next request that would be refused has to pass."""
        return self._refused + 1 >= PROBE_EVERY or now_s - self._probed_s >= PROBE_S

    def probed(self, now_s: float) -> None:
        """A probe passed."""
        self._probed_s, self._refused = now_s, 0

    def refused(self) -> None:
        """A request was refused."""
        self._refused += 1

    def learn(self, predicted_s: float, actual_s: float, now_s: float) -> None:
        """Take note of what became of a request that passed."""
        if predicted_s > self.refuses_from_s:
            least_s = predicted_s * min(1.0, self._margin) / WRONG
            self._violators.append((now_s, actual_s > self.limit_s or actual_s >= least_s))
        took = max(LEAST_S, actual_s) / max(LEAST_S, predicted_s)
        self._took.append(took)
        self._median = median(self._took)
        if predicted_s >= min(self.limit_s, self.refuses_from_s) / 2 or actual_s >= self.limit_s / 2:
            self._took_near.append(took)
            if len(self._took_near) >= LEAST_NEAR:
                kept = sorted(self._took_near)[math.ceil(KEPT * len(self._took_near)) - 1]
                self._margin = min(MOST_MARGIN, max(1 / BIAS, kept))


@dataclass(slots=True, kw_only=True)
class Forecast:
    """What was expected of one request that passed; it is told what happens, and tells the judges."""

    gate: SloGate
    place: Place | None  # whose limits learn what its tokens took; None where nothing is to be learned of that
    predicted_s: Mapping[str, float]  # by objective
    received_s: float
    first_s: float = 0.0
    arrivals: int = 0

    def tokens_came(self, now_s: float) -> None:
        """New tokens are there."""
        self.arrivals += 1
        if self.arrivals == 1:
            self.first_s = now_s
            self._learn("ttft", now_s - self.received_s, now_s)
        elif self.arrivals == 2:
            self._learn("gap", now_s - self.first_s, now_s)

    def finished(self, longest: int, now_s: float) -> None:
        """The last token has come; `longest` counts those of the longest answer."""
        if longest > 1 and self.arrivals > 1:
            self._learn("tpot", (now_s - self.first_s) / (longest - 1), now_s)

    def given_up(self, now_s: float) -> None:
        """The request failed or was cancelled. Without a token by then, it has missed its TTFT if that was over."""
        judge = self.gate.judges.get("ttft")
        waited_s = now_s - self.received_s
        if self.arrivals == 0 and judge is not None and waited_s > judge.limit_s:
            # How long it would have taken nobody knows: what was predicted, unless it waited for longer already.
            self._learn("ttft", max(waited_s, self.predicted_s["ttft"]), now_s)

    def _learn(self, slo: str, actual_s: float, now_s: float) -> None:
        judge, predicted_s = self.gate.judges.get(slo), self.predicted_s[slo]
        if judge is not None:
            judge.learn(predicted_s, actual_s, now_s)
            if slo == "ttft":
                self.gate.recent.append(actual_s > judge.limit_s)
            elif self.place is not None:
                self.gate.places.learn(self.place, slo, actual_s, now_s)
            misses = predicted_s > judge.limit_s, actual_s > judge.limit_s
            self.gate.tally.slo_outcome(slo, predicted_miss=misses[0], actual_miss=misses[1])


class SloGate:
    """The judges of all objectives that are set; 0 is none. With `may_refuse` False it stays in shadow mode."""

    def __init__(self, *, ttft_s: float, gap_s: float, tpot_s: float, may_refuse: bool, tally: Tally) -> None:
        limits = {"ttft": ttft_s, "gap": gap_s, "tpot": tpot_s}
        inside = {**limits, "ttft": (1 - READ_WITHIN) * ttft_s} if may_refuse else {}
        self.places = Places({slo: limit_s for slo, limit_s in inside.items() if limit_s > 0})
        holds = {"ttft": self.places.waiting}
        self.judges = {
            slo: SloJudge(limit_s, holds.get(slo, self.places.inside).is_known)
            for slo, limit_s in limits.items()
            if limit_s > 0
        }
        self.recent: deque[bool] = deque(maxlen=ROUND)  # who was refused or missed its TTFT
        self.tally = tally
        self._may_refuse = may_refuse

    def is_active(self, slo: str, clock: Clock) -> bool:
        """True while the judge of an objective that is set refuses."""
        return self._may_refuse and self.judges[slo].is_active(clock.now())

    def enter(self, now_s: float) -> Place:
        """Take a place among those that are in; raises Refused where others were late with as many."""
        with self._noted():
            return self.places.enter(now_s)

    def check(self, now_s: float, ahead: int = 0) -> None:
        """Raise Refused where nobody gets a place behind `ahead` others."""
        with self._noted():
            self.places.check(now_s, ahead)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Refused:
            self.recent.append(True)
            raise

    def is_pressed(self, clock: Clock) -> bool:
        """True while some of the latest were refused or missed their TTFT, or its judge refuses."""
        is_late = sum(self.recent) >= LATE and self._may_refuse
        return "ttft" in self.judges and (is_late or self.is_active("ttft", clock))

    def admit(
        self,
        prediction: Prediction,
        *,
        received_s: float,
        now_s: float,
        place: Place | None = None,
        is_let_in: bool = False,
    ) -> Forecast:
        """Let a request pass that is placed now; raises Refused, with the time until it should meet its SLO.

        One that is let in already passes whatever is predicted.
        """
        predicted_s = {
            "ttft": now_s - received_s + prediction.ttft_s,
            "gap": prediction.gap_s,
            "tpot": prediction.tpot_s,
        }
        refusing = [
            slo
            for slo, judge in self.judges.items()
            if predicted_s[slo] > judge.refuses_from_s and self._may_refuse and judge.is_active(now_s) and not is_let_in
        ]
        if all(self.judges[slo].is_probe_due(now_s) for slo in refusing):
            for slo in refusing:
                self.judges[slo].probed(now_s)
                self.tally.slo_probe(slo)
        elif refusing:
            for slo in refusing:
                self.judges[slo].refused()
                self.recent.append(True)
            raise self._refusal(refusing[0], predicted_s, prediction)
        return Forecast(gate=self, place=place, predicted_s=predicted_s, received_s=received_s)

    def _refusal(self, slo: str, predicted_s: Mapping[str, float], prediction: Prediction) -> Refused:
        judge = self.judges[slo]
        over_s = predicted_s[slo] - judge.refuses_from_s
        # A queue drains by a second each second. Of a crowd that decodes we know only how long one token takes.
        wait_s = min(over_s, prediction.queue_s) if slo == "ttft" else 0.0
        return Refused(
            Reason(f"slo_{slo}"),
            f"its {slo} should be {predicted_s[slo]:.3f} s: too near or beyond the objective of {judge.limit_s} s",
            retry_after_s=bounded_s(wait_s),
        )
