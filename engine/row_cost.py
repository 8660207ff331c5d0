"""What rows take that a step has beside its decodes: a curve through what was measured, in seconds by rows in all.

A product's time is not in proportion to its rows: some come with the weights that are read anyway, and others fill a
tile that was begun. Between two measurements the curve is straight, and behind the last it goes on as before it. Takes
durations; reads no clock.
"""

from __future__ import annotations

from bisect import bisect_left

SMOOTHING = 0.2  # weight of the newest measurement


class RowCost:
    """One engine's."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # ascending
        self._seconds: list[float] = []

    def more_s(self, rows: int, more: int) -> float:
        """Return what a step of so many rows takes longer with `more`, 0 until anything is known."""
        return max(0.0, self._at(rows + more) - self._at(rows))

    def observe(self, rows: int, more: int, seconds: float) -> None:
        """Account for a step of `rows` that took so much longer with `more`."""
        start_s = self._at(rows)
        self._put(rows, start_s)
        self._put(rows + more, start_s + seconds)

    def _at(self, rows: int) -> float:
        known, seconds = self._rows, self._seconds
        place = bisect_left(known, rows)
        if place < len(known) and known[place] == rows:
            return seconds[place]
        if place == 0 or len(known) == 1:
            return seconds[0] if known else 0.0
        last = min(place, len(known) - 1)
        slope_s = (seconds[last] - seconds[last - 1]) / (known[last] - known[last - 1])
        return seconds[last - 1] + slope_s * (rows - known[last - 1])

    def _put(self, rows: int, seconds: float) -> None:
        place = bisect_left(self._rows, rows)
        if place < len(self._rows) and self._rows[place] == rows:
            self._seconds[place] += SMOOTHING * (seconds - self._seconds[place])
        else:
            self._rows.insert(place, rows)
            self._seconds.insert(place, seconds)
