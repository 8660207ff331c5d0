"""The places of one model's requests: one among all that are in, and one among those that wait for their first token.

Pure: time is a parameter. What a first token takes depends on how many wait for theirs, what the next ones take on how
many are in, so each has a limit of its own (`ConcurrencyLimit`). With one on all alone, whenever many answers end at
once as many come in as the limit, of whom then all wait, and most for too long: in time were they when most of those
that were in had their first token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pagewire.router.concurrency_limit import ConcurrencyLimit, Stay

FIRST = "ttft"


@dataclass(slots=True, eq=False)
class Place:
    """What one request takes: a stay among those that wait, over once `is_served`, and one among all that are in."""

    waiting: Stay
    inside: Stay
    is_served: bool = False  # it has had its first token


class Places:
    """Those of one model, by its objectives in seconds, from entering; without any there is no limit.

    Every `enter` that returned is followed by exactly one `leave`, and by at most one `serve` before it.
    """

    def __init__(self, objectives_s: Mapping[str, float]) -> None:
        self.waiting = ConcurrencyLimit("wait for their first token", stay_s=objectives_s.get(FIRST, math.inf))
        self.inside = ConcurrencyLimit("are in", objectives_s)

    @property
    def limits(self) -> Mapping[str, ConcurrencyLimit]:
        """By whom they count."""
        return {"waiting": self.waiting, "inside": self.inside}

    def is_full(self, ahead: int = 0) -> bool:
        """Tell whether there is no place for one more behind `ahead` others that are to have theirs first."""
        return self.waiting.is_reached(ahead) or self.inside.is_reached(ahead)

    def check(self, now_s: float, ahead: int = 0) -> None:
        """Raise Refused, with the time in which a place should come free, where it `is_full`."""
        self.waiting.check(now_s, ahead)
        self.inside.check(now_s, ahead)

    def enter(self, now_s: float) -> Place:
        """Take a place; raises Refused as `check` does."""
        self.inside.check(now_s)  # before anything is taken
        return Place(self.waiting.enter(now_s), self.inside.enter(now_s))

    def serve(self, place: Place, now_s: float) -> None:
        """Somebody has its first token."""
        place.is_served = True
        self.waiting.leave(place.waiting, now_s, is_served=True)
        self.inside.learn(place.inside, FIRST, now_s - place.inside.entered_s, now_s)

    def learn(self, place: Place, objective: str, took_s: float, now_s: float) -> None:
        """Take note of the seconds that somebody took for what comes after its first token."""
        self.inside.learn(place.inside, objective, took_s, now_s)

    def forget(self, place: Place) -> None:
        """What becomes of somebody says nothing of the others from now on: its pod was lost. It goes on elsewhere."""
        self.waiting.forget(place.waiting)
        self.inside.forget(place.inside)

    def leave(self, place: Place, now_s: float) -> None:
        """Give a place back."""
        if not place.is_served:
            self.waiting.leave(place.waiting, now_s, is_served=False)
        self.inside.leave(place.inside, now_s, is_served=place.is_served)
