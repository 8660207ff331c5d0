"""What rows take that a step has beside its decodes: a curve through what was measured, in seconds by rows in all.

A product's time is not in proportion to its rows: some come with the weights that are read anyway, and others fill a
tile that was begun. Between two measurements the curve is straight, and behind the last it goes on as before it. What
was measured long ago counts for less, and fewer rows take no more than was last seen of more. Takes durations; reads
no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

SMOOTHING = 0.2  # weight of the newest measurement over one of the step before it


@dataclass(slots=True)
class Recent:
    """A duration, which newer ones are blended into: the more steps ago it was measured, the less it counts."""

    seconds: float
    step: int

    def blend(self, seconds: float, step: int) -> None:
        """Take a measurement of a later step."""
        self.seconds += (1.0 - (1.0 - SMOOTHING) ** (step - self.step)) * (seconds - self.seconds)
        self.step = step


class RowCost:
    """One engine's."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # ascending
        self._costs: list[Recent] = []

    def more_s(self, rows: int, more: int) -> float:
        """Return what a step of so many rows takes longer with `more`, 0 until anything is known."""
        return max(0.0, self._at(rows + more) - self._at(rows))

    def observe(self, rows: int, more: int, seconds: float, step: int) -> None:
        """Account for a step of `rows` that took so much longer with `more`; `step` is its number."""
        start_s = self._at(rows)
        self._put(rows, start_s, step)
        self._put(rows + more, start_s + seconds, step)

    def _at(self, rows: int) -> float:
        known, costs = self._rows, self._costs
        place = bisect_left(known, rows)
        if place < len(known) and known[place] == rows:
            return costs[place].seconds
        if place == 0:
            return costs[0].seconds if known else 0.0
        last = min(place, len(known) - 1)
        slope_s = (costs[last].seconds - costs[last - 1].seconds) / (known[last] - known[last - 1])
        return costs[last - 1].seconds + slope_s * (rows - known[last - 1])

    def _put(self, rows: int, seconds: float, step: int) -> None:
        place = bisect_left(self._rows, rows)
        if place < len(self._rows) and self._rows[place] == rows:
            self._costs[place].blend(seconds, step)
        else:
            self._rows.insert(place, rows)
            self._costs.insert(place, Recent(seconds, step))
        for fewer in self._costs[:place]:
            fewer.seconds = min(fewer.seconds, self._costs[place].seconds)
