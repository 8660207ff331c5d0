"""How wrong predictions are, part by part, and what the next ones are multiplied with for that.

    factor = mean of what it took / mean of what was said before correction       between 1/4 and 4
    error  = mean of |what it took - what was said| / mean of what it took

Means are exponential, of the last hundred or so requests of one way. A ratio of means, and not a mean of ratios: a
queue that was said to be nothing and was a step long would be an infinite ratio. A way that was slow once is not chosen
and so not measured: what is above 1 in its factors fades while all requests go the other way. Pure. Invariants: factors
stay within their bounds, and are 1 until enough was seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagewire.core.rest import faded
from pagewire.router.prediction import PARTS, Correction, Factors, Prediction, Way

WEIGHT = 0.02  # of the newest request
WARM_UP = 10  # requests before anything is corrected
BOUND = 4.0  # a single stall must not turn all placements
MOST_SURPRISE = 10.0  # times what is usual: what took longer counts as this
UNSEEN = 100  # requests in a row that go the other way, before the factors of one begin to fade
HALF_LIFE = 200  # further ones, in which half of what is above 1 is gone


class PartRecord:
    """One part of one way: totals for metrics, moving means for corrections. Seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.predicted_s = 0.0
        self.actual_s = 0.0
        self.error_s = 0.0
        self._mean_raw_s = 0.0
        self._mean_actual_s = 0.0
        self._mean_error_s = 0.0

    @property
    def factor(self) -> float:
        """What an uncorrected prediction is multiplied with."""
        if self.count < WARM_UP or self._mean_raw_s <= 0.0:
            return 1.0
        return min(BOUND, max(1 / BOUND, self._mean_actual_s / self._mean_raw_s))

    @property
    def error(self) -> float:
        """Mean absolute error over the mean of what it took; infinite until enough was seen."""
        if self.count < WARM_UP or self._mean_actual_s <= 0.0:
            return float("inf")
        return self._mean_error_s / self._mean_actual_s

    def observe(self, predicted_s: float, factor: float, actual_s: float) -> None:
        """What was said to take `predicted_s`, corrected by `factor`, took `actual_s`."""
        self.count += 1
        self.predicted_s += predicted_s
        self.actual_s += actual_s
        self.error_s += abs(actual_s - predicted_s)
        if self.count > WARM_UP:
            usual_s = max(self._mean_actual_s, self._mean_raw_s, predicted_s)
            actual_s = min(actual_s, MOST_SURPRISE * usual_s)
        weight = max(WEIGHT, 1 / self.count)
        self._mean_raw_s += weight * (predicted_s / factor - self._mean_raw_s)
        self._mean_actual_s += weight * (actual_s - self._mean_actual_s)
        self._mean_error_s += weight * (abs(actual_s - predicted_s) - self._mean_error_s)


class Calibration:
    """All parts of both ways, and how long answers become."""

    def __init__(self) -> None:
        self.records: Mapping[tuple[Way, str], PartRecord] = {
            (way, part): PartRecord() for way in Way for part in PARTS
        }
        self.correction = Correction()
        self.answer_tokens = 128.0
        self._answers = 0
        self._unseen = dict.fromkeys(Way, 0)  # requests since the last one of a way

    def observe(self, way: Way, predicted: Prediction, with_: Correction, actual: Mapping[str, float]) -> None:
        """A request that was placed `way`, predicted with the correction `with_`, took `actual` seconds by part."""
        self._unseen = {each: 0 if each is way else unseen + 1 for each, unseen in self._unseen.items()}
        factors = with_.of(way)
        for part, seconds in actual.items():
            self.records[way, part].observe(getattr(predicted, part), getattr(factors, part), seconds)
        self.correction = Correction(local=self._factors(Way.LOCAL), remote=self._factors(Way.REMOTE))

    def answered(self, tokens: int) -> None:
        """An answer came to that many tokens."""
        self._answers += 1
        self.answer_tokens += max(WEIGHT, 1 / self._answers) * (max(1, tokens) - self.answer_tokens)

    def error(self, way: Way) -> float:
        """Return the largest error of the parts of TTFT that matter: those that make a tenth of it or more."""
        records = [self.records[way, part] for part in ("queue_s", "prefill_s", "relay_s")]
        total_s = sum(record.actual_s for record in records)
        return max((each.error for each in records if each.actual_s >= total_s / 10), default=float("inf"))

    def _factors(self, way: Way) -> Factors:
        belief = 0.5 ** (max(0, self._unseen[way] - UNSEEN) / HALF_LIFE)
        return Factors(**{part: faded(self.records[way, part].factor, 1.0, belief) for part in PARTS})
