"""Refuses what would miss its SLO, for as long as predictions of that have proved right; counts and learns until then.

Pure: time is a parameter. Knows predicted and actual seconds, nothing of how they come about. Each objective (TTFT, the
gap between the first two tokens, TPOT) has a judge of its own with its own record. A judge is

    active   when of the last `VIOLATORS` requests that it predicted to miss, at least `PRECISION` did, none of them
             older than `MEMORY_S`, and the median of predicted / actual over the last `SAMPLES` requests of any kind
             lies within a factor of `BIAS`
    shadow   otherwise: everything passes, and what it would have refused is compared with what became of it

An active judge lets a probe through: every `PROBE_EVERY`th request that it would refuse, and the first one after
`PROBE_S`. So it learns that it is wrong: from the moment on which its predictions are, the third probe that meets its
objective ends the refusing. It refuses only within `PROBE_S` after a probe: in all, requests that would have met their
objective are refused for no longer than 3 x `PROBE_S` and the time of one measurement, and no more of them than
3 x `PROBE_EVERY` and those that come during one measurement.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from pagewire.core.clock import Clock
from pagewire.router.drain_rate import bounded_s
from pagewire.router.prediction import Prediction
from pagewire.router.refusals import Reason, Refused

VIOLATORS = 20
PRECISION = 0.9
SAMPLES = 64
BIAS = 1.5
MEMORY_S = 600.0
PROBE_EVERY = 10
PROBE_S = 5.0
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
    """One objective: the seconds that something may take."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._violators: deque[tuple[float, bool]] = deque(maxlen=VIOLATORS)  # when measured, whether it missed
        self._errors: deque[float] = deque(maxlen=SAMPLES)  # log of predicted / actual
        self._refused = 0  # since the last probe
        self._probed_s = -math.inf

    def predicts_miss(self, predicted_s: float) -> bool:
        """True when a request of such a prediction would miss."""
        return predicted_s > self.limit_s

    def is_active(self, now_s: float) -> bool:
        """True while predictions of a miss have proved right."""
        while self._violators and now_s - self._violators[0][0] > MEMORY_S:
            self._violators.popleft()
        missed = sum(has_missed for _, has_missed in self._violators)
        is_right = len(self._violators) == VIOLATORS and missed >= PRECISION * VIOLATORS
        return is_right and abs(median(self._errors)) <= math.log(BIAS)

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
        if self.predicts_miss(predicted_s):
            self._violators.append((now_s, actual_s > self.limit_s))
        self._errors.append(math.log(max(LEAST_S, predicted_s) / max(LEAST_S, actual_s)))


@dataclass(slots=True, kw_only=True)
class Forecast:
    """What was expected of one request that passed; it is told what happens, and tells the judges."""

    gate: SloGate
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
        if self.arrivals == 0 and judge is not None and now_s - self.received_s > judge.limit_s:
            self._learn("ttft", now_s - self.received_s, now_s)

    def _learn(self, slo: str, actual_s: float, now_s: float) -> None:
        judge, predicted_s = self.gate.judges.get(slo), self.predicted_s[slo]
        if judge is not None:
            judge.learn(predicted_s, actual_s, now_s)
            predicted_miss, actual_miss = judge.predicts_miss(predicted_s), actual_s > judge.limit_s
            self.gate.tally.slo_outcome(slo, predicted_miss=predicted_miss, actual_miss=actual_miss)


class SloGate:
    """The judges of all objectives that are set; 0 is none. With `may_refuse` False it stays in shadow mode."""

    def __init__(self, *, ttft_s: float, gap_s: float, tpot_s: float, may_refuse: bool, tally: Tally) -> None:
        limits = {"ttft": ttft_s, "gap": gap_s, "tpot": tpot_s}
        self.judges = {slo: SloJudge(limit_s) for slo, limit_s in limits.items() if limit_s > 0}
        self.tally = tally
        self._may_refuse = may_refuse

    def is_active(self, slo: str, clock: Clock) -> bool:
        """True while the judge of an objective that is set refuses."""
        return self._may_refuse and self.judges[slo].is_active(clock.now())

    def admit(self, prediction: Prediction, *, received_s: float, now_s: float) -> Forecast:
        """Let a request pass that is placed now; raises Refused, with the time until it should meet its SLO."""
        predicted_s = {
            "ttft": now_s - received_s + prediction.ttft_s,
            "gap": prediction.gap_s,
            "tpot": prediction.tpot_s,
        }
        refusing = [
            slo
            for slo, judge in self.judges.items()
            if judge.predicts_miss(predicted_s[slo]) and self._may_refuse and judge.is_active(now_s)
        ]
        if all(self.judges[slo].is_probe_due(now_s) for slo in refusing):
            for slo in refusing:
                self.judges[slo].probed(now_s)
                self.tally.slo_probe(slo)
        else:
            for slo in refusing:
                self.judges[slo].refused()
            raise self._refusal(refusing[0], predicted_s, prediction)
        return Forecast(gate=self, predicted_s=predicted_s, received_s=received_s)

    def _refusal(self, slo: str, predicted_s: Mapping[str, float], prediction: Prediction) -> Refused:
        over_s = predicted_s[slo] - self.judges[slo].limit_s
        # A queue drains by a second each second. Of a crowd that decodes we know only how long one token takes.
        wait_s = min(over_s, prediction.queue_s) if slo == "ttft" else 0.0
        return Refused(
            Reason(f"slo_{slo}"),
            f"its {slo} would be {predicted_s[slo]:.3f} s, beyond the objective of {self.judges[slo].limit_s} s",
            retry_after_s=bounded_s(wait_s),
        )
