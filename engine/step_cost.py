"""What a step will take, as a law that is fitted while steps run.

    seconds = pace x (a + b prefill tokens + c decodes + d attended)

`attended` counts pairs of a token and one that it looks at. The law is fitted by recursive least squares with
forgetting; a step that took much longer than said counts for as much as one at the edge of the usual (Huber's weight).
The pace follows at once a machine that becomes slower or faster as a whole, of which a few steps of one kind would tell
the law nothing. Pure: takes durations, reads no clock. Invariant: the fit stays bounded while steps of one kind alone
are seen, because only what a step tells of is forgotten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagewire.engine.step import Step

# What each term is measured in, so that all are about as large: one, a chunk, a batch, a chunk in a long context.
UNITS = (1.0, 256.0, 32.0, 65536.0)
FORGET = 0.998  # weight of a step over that of the next one
PRIOR = 100.0  # variance of each coefficient at first, in squared seconds per unit
EDGE = 3.0  # in mean absolute errors: what is beyond it is unusual
AGILITY = 0.1  # how far the pace goes along with a surprise,
MOST_SURPRISE = 0.3  # which counts for no more than this factor's logarithm
WARM_UP = 8  # steps that count in full, until it is known what is usual


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What a step has to do: the terms of the law; a drafted token costs what one of a prompt does."""

    prefill_tokens: int = 0
    drafted: int = 0
    decodes: int = 0
    attended: int = 0

    @classmethod
    def of(cls, step: Step) -> StepShape:
        """Return the shape of a step; a grant of one token is a decode, whatever is drafted beside it."""
        sizes = [(grant.start, len(grant.tokens), len(grant.checks)) for grant in step.grants]
        return cls(
            prefill_tokens=sum(count for _, count, drafted in sizes if count - drafted > 1),
            drafted=sum(drafted for _, _, drafted in sizes),
            decodes=sum(count - drafted == 1 for _, count, drafted in sizes),
            attended=sum(count * start + count * (count + 1) // 2 for start, count, _ in sizes),
        )

    def terms(self) -> tuple[float, ...]:
        """Return the law's terms in their units."""
        values = (1, self.prefill_tokens + self.drafted, self.decodes, self.attended)
        return tuple(value / unit for value, unit in zip(values, UNITS, strict=True))


class StepCost:
    """The fit. `error_s` is the mean absolute error of its predictions."""

    def __init__(self) -> None:
        size = range(len(UNITS))
        self.num_steps = 0
        self.error_s = 0.0
        self._pace = 1.0
        self._law = [0.0 for _ in size]
        self._spread = [[PRIOR if row == column else 0.0 for column in size] for row in size]  # covariance

    def predict_s(self, shape: StepShape) -> float:
        """Return the seconds that a step should take."""
        return max(0.0, self._pace * self._said(shape.terms()))

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """Account for a step that took `elapsed_s`."""
        terms = shape.terms()
        said_s = self._pace * self._said(terms)
        error_s = elapsed_s - said_s
        self.num_steps += 1
        weight = 1.0
        if self.num_steps > WARM_UP:
            edge_s = EDGE * max(self.error_s, 0.01 * elapsed_s)
            weight = min(1.0, edge_s / max(abs(error_s), 1e-12))
            self.error_s += 0.05 * (min(abs(error_s), 2 * edge_s) - self.error_s)
            if said_s > 0.0 < elapsed_s:
                surprise = math.log(elapsed_s / said_s)
                self._pace *= math.exp(AGILITY * min(max(surprise, -MOST_SURPRISE), MOST_SURPRISE))
        elif self.num_steps == WARM_UP:
            self.error_s = abs(error_s)
        self._fit(terms, elapsed_s / self._pace - self._said(terms), weight)

    def most_prefill(self, left_s: float, depth: int) -> int:
        """Return the prompt tokens that `left_s` seconds are enough for, `depth` tokens into their prompt.

        The larger root p of  d/2 p^2 + (b + d (depth + 1/2)) p = left.
        """
        slope_s = max(0.0, self._pace * self._law[1] / UNITS[1])
        bend_s = max(0.0, self._pace * self._law[3] / UNITS[3])
        linear_s = max(1e-9, slope_s + bend_s * (depth + 0.5))
        # The root with the difference in the denominator, which stays exact when d is next to nothing.
        return int(2 * max(0.0, left_s) / (linear_s + math.sqrt(linear_s**2 + 2 * bend_s * max(0.0, left_s))))

    def _said(self, terms: tuple[float, ...]) -> float:
        return math.fsum(c * x for c, x in zip(self._law, terms, strict=True))

    def _fit(self, terms: tuple[float, ...], error_s: float, weight: float) -> None:
        spread = self._spread
        size = range(len(terms))
        along = [math.fsum(spread[row][column] * terms[column] for column in size) for row in size]
        told = math.fsum(x * y for x, y in zip(terms, along, strict=True))
        if told <= 0.0 or weight <= 0.0:  # as where no step took any time so far
            return
        self._law = [c + y * error_s / (1.0 / weight + told) for c, y in zip(self._law, along, strict=True)]
        # Kulhavy's directional forgetting: what a step says nothing of is not forgotten, or it would drift without end.
        shrink = (FORGET - (1.0 - FORGET) / told) / (FORGET * (1.0 + told))
        self._spread = [[spread[row][column] - shrink * along[row] * along[column] for column in size] for row in size]
