"""Steps of one engine, one behind the other: when each ends, at the pace at which its machine lets them. Pure.

`num_done` of them are accounted for. Invariant: a change of pace moves what is not over, and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right


class Course:
    """Begins at `begun_s`; its steps take `works_s` times `slowdown`. All in virtual seconds."""

    __slots__ = ("begun_s", "ends_s", "num_done", "slowdown", "works_s")

    def __init__(self, begun_s: float, works_s: list[float], slowdown: float) -> None:
        self.begun_s = begun_s
        self.works_s = works_s
        self.slowdown = slowdown
        self.ends_s: list[float] = []
        self.num_done = 0
        self._lay(begun_s)

    def num_over(self, now_s: float) -> int:
        """Return how many steps have ended by now."""
        return bisect_right(self.ends_s, now_s)

    def change(self, slowdown: float, now_s: float) -> None:
        """From now on its steps take so many times their work."""
        current = self.num_over(now_s)
        if current < len(self.ends_s):
            end_s = now_s + (self.ends_s[current] - now_s) * (slowdown / self.slowdown)
            self.slowdown = slowdown
            self.ends_s[current:] = [end_s]
            self._lay(end_s)

    def cut_short(self) -> None:
        """Let it end with the step behind those that are accounted for."""
        keep = self.num_done + 1
        del self.works_s[keep:], self.ends_s[keep:]

    def took_s(self, first: int, last: int) -> list[float]:
        """Return how long each step from `first` up to `last` took."""
        moments = [self.ends_s[first - 1] if first else self.begun_s, *self.ends_s[first:last]]
        return [moments[at + 1] - moments[at] for at in range(last - first)]

    def _lay(self, at_s: float) -> None:
        slowdown = self.slowdown
        for work_s in self.works_s[len(self.ends_s) :]:
            at_s += work_s * slowdown
            self.ends_s.append(at_s)
