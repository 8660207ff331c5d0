"""How fast places come free while all are taken, and so when it is worth to come back.

Pure: time is a parameter. Knows nothing of what the places are. Time counts only while somebody is kept waiting: an
hour without requests says nothing about how long the next one will wait.
"""

from __future__ import annotations

SMOOTHING = 0.1  # weight of the newest interval in the moving average
FIRST_GUESS_S = 1.0  # between two places, before any came free
MIN_S, MAX_S = 1.0, 60.0  # what a caller is told lies between these


class DrainRate:
    """The moving mean of the seconds between two places that come free."""

    def __init__(self) -> None:
        self._interval_s = FIRST_GUESS_S
        self._since_s: float | None = None  # all places have been taken, or the last one came free

    def full(self, now_s: float) -> None:
        """All places are taken, from now on at the latest."""
        if self._since_s is None:
            self._since_s = now_s

    def freed(self, now_s: float, *, is_full: bool) -> None:
        """A place came free; `is_full` says whether somebody took it at once."""
        if self._since_s is not None:
            self._interval_s += SMOOTHING * (now_s - self._since_s - self._interval_s)
        self._since_s = now_s if is_full else None

    def retry_after_s(self, places: int, now_s: float) -> float:
        """Return the seconds in which `places` should come free, between `MIN_S` and `MAX_S`.

        A silence that is longer than the mean counts as what it is.
        """
        silence_s = 0.0 if self._since_s is None else now_s - self._since_s
        return bounded_s(places * max(self._interval_s, silence_s))


def bounded_s(seconds: float) -> float:
    """Return what a caller may be told of `seconds`: no less than a second, no more than a minute."""
    return min(MAX_S, max(MIN_S, seconds))
