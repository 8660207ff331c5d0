"""The routers of one client, and which of them is next. Pure; knows no channel.

All serve the same pods, so a client stays with one while it answers: the first of the list, or where that was lost the
next. A lost one rests, and is tried again afterwards. Not locked: what threads may lose is who was noticed first.
"""

from __future__ import annotations

from collections.abc import Collection

REST_S = 5.0


class Routers:
    """`count` routers by their place in the caller's list; times are seconds on the caller's monotonic clock."""

    def __init__(self, count: int, *, rest_s: float = REST_S) -> None:
        if count < 1:
            raise ValueError("a client needs at least one router")
        self._count = count
        self._rest_s = rest_s
        self._current = 0
        self._lost_at_s: dict[int, float] = {}

    def choose(self, now_s: float, avoid: Collection[int] = ()) -> int:
        """Return the router for the next attempt: the current one or the next that is not resting, nor in `avoid`.

        Where there is none, the one that was lost the longest ago.
        """
        places = [(self._current + step) % self._count for step in range(self._count)]
        for place in places:
            if place not in avoid and not self._rests(place, now_s):
                return place
        fresh = [place for place in places if place not in avoid] or places
        return min(fresh, key=lambda place: self._lost_at_s.get(place, now_s))

    def has_other(self, now_s: float, avoid: Collection[int]) -> bool:
        """True where some router is neither in `avoid` nor resting."""
        return any(place not in avoid and not self._rests(place, now_s) for place in range(self._count))

    def lost(self, place: int, now_s: float) -> None:
        """A router did not answer, or said that it goes away: the one after it is current now."""
        self._lost_at_s[place] = now_s
        if place == self._current:
            self._current = (place + 1) % self._count

    def answered(self, place: int) -> None:
        """A router answered."""
        self._lost_at_s.pop(place, None)

    def _rests(self, place: int, now_s: float) -> bool:
        lost_at_s = self._lost_at_s.get(place)
        return lost_at_s is not None and now_s < lost_at_s + self._rest_s
