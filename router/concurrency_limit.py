"""How many requests may be in at once so that those who are meet their objectives: learned from what became of others.

Pure: time is a parameter. Knows how many are in and what they took over what they may take, nothing of why: a pod that
has room but no seat, a router short of processor time, a neighbour on the machine.

    round    `ROUND` requests, the first that entered since the limit last changed or was found to be right
    share    the most that one of them took of an objective; of who waits for its first token beyond the objective,
             what it should come to: its wait, times those that were before it over those that have been served
             since. Of a round: the least of the `LATE` largest
    crowd    how many were in as each of them entered, the median

    share > 1, known with the third that is late    limit = crowd x GOAL / share, of those that are late
    all are over, share < GOAL, some were refused   limit = crowd x GOAL / share, at most `MOST_RAISE` x crowd, at least
                                                    crowd + 1, where that is more than it was

Where requests wait for something of a fixed pace, what they take is proportional to how many are in (Little's law), so
that one cut is about enough. There is no limit until a round is late.

Where fewer are in and what they take stays what it was, lateness has other causes (prompts too long, a promise that no
pod can keep) and refusing helps nobody: with a quarter of the crowd in which cutting began and still more than `HELPED`
of the share, the limit is lifted for `HOLD_S`, each time in a row twice as long, up to `MOST_HOLD_S`, unless it becomes
worse by as much as it should have become better. `CALM` rounds in time end the row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pagewire.router.drain_rate import DrainRate
from pagewire.router.refusals import Reason, Refused

ROUND = 20
LATE = 3  # of a round: nine of ten are to be in time
GOAL = 0.8
MOST_RAISE = 1.1
LEAST_CUT = 0.8  # a cut leaves no more than this of the crowd
FEWER = 4
HELPED = 0.6
HOLD_S, MOST_HOLD_S = 30.0, 600.0
CALM = 5
FIRST = "ttft"  # the objective that who waits for a first token may be known to miss before it comes


@dataclass(slots=True, eq=False)
class Stay:
    """A place that was taken. `ahead` are those who waited for their first token then, `served` all who had had it.

    `share` is what it took, or should come to; `least` what it has taken already.
    """

    entered_s: float
    crowd: int
    ahead: int
    served: int
    share: float = 0.0
    least: float = 0.0
    is_waiting: bool = True  # for its first token
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A late round: how many were in at most, and who was late. What they took may be known better later."""

    most: int
    late: Sequence[Stay]

    @property
    def share(self) -> float:
        """What nine of ten should keep to."""
        return self.late[LATE - 1].share

    @property
    def least(self) -> float:
        """What they have taken already."""
        return min(each.least for each in self.late[:LATE])

    @property
    def is_known(self) -> bool:
        """True when nobody has still to be served of whom that says something."""
        return not any(each.is_waiting for each in self.late[:LATE])

    @property
    def fewer(self) -> float:
        """With how few of them it should be far better, and the least that one cut leaves."""
        return max(1.0, self.most / FEWER)


class ConcurrencyLimit:
    """The limit of one model, by these objectives in seconds: without any there is none.

    Every `enter` that returned is followed by exactly one `leave`.
    """

    def __init__(self, objectives_s: Mapping[str, float]) -> None:
        self.most = math.inf  # requests at once
        self.inside = 0
        self._objectives_s = objectives_s
        self._round: list[Stay] = []
        self._was_full = False
        self._served = 0
        self._waiting = 0
        self._trouble: _Trouble | None = None
        self._calm = 0  # rounds in time, in a row
        self._hold_s = HOLD_S
        self._lifted_until_s = -math.inf
        self._borne: _Trouble | None = None  # what could not be helped
        self._drain = DrainRate()

    @property
    def is_reached(self) -> bool:
        """True while there is no place for one more."""
        return self.inside + 1 > self.most

    def check(self, now_s: float) -> None:
        """Raise Refused, with the time in which a place should come free, where the limit is reached."""
        self._look_at_waiting(now_s)
        if self.is_reached:
            self._was_full = True
            self._drain.full(now_s)
            message = f"as many requests are in as were in time, {self.inside}: with more of them answers were late"
            raise Refused(Reason.SLO_CONCURRENCY, message, retry_after_s=self._drain.retry_after_s(1, now_s))

    def enter(self, now_s: float) -> Stay:
        """Take a place; raises Refused as `check` does."""
        self.check(now_s)
        self.inside += 1
        stay = Stay(entered_s=now_s, crowd=self.inside, ahead=self._waiting, served=self._served)
        self._waiting += 1
        if len(self._round) < ROUND:
            self._round.append(stay)
        return stay

    def serve(self, stay: Stay) -> None:
        """Somebody has its first token."""
        stay.is_waiting = False
        self._waiting -= 1
        self._served += 1

    def learn(self, stay: Stay, objective: str, took_s: float, now_s: float) -> None:
        """Take note of the seconds that somebody took, where an objective says how many it may; no other is known."""
        limit_s = self._objectives_s.get(objective)
        if limit_s is not None:
            stay.share = stay.least = max(stay.least, took_s / limit_s)
            self._judge(now_s)

    def forget(self, stay: Stay) -> None:
        """What becomes of somebody says nothing of the crowd from now on: its pod was lost, or it was called off."""
        self._waiting -= stay.is_waiting
        stay.is_waiting = False
        if stay in self._round:
            self._round.remove(stay)

    def leave(self, stay: Stay, now_s: float) -> None:
        """Give a place back."""
        if stay.is_waiting and not stay.least:
            self.forget(stay)
        self._waiting -= stay.is_waiting
        stay.is_waiting = False
        self.inside -= 1
        self._drain.freed(now_s, is_full=False)
        stay.is_over = True
        if len(self._round) == ROUND and all(each.is_over for each in self._round):
            self._raise()

    def _look_at_waiting(self, now_s: float) -> None:
        """Take note of who waits for longer than it may: of a queue that grows, its end is known late."""
        limit_s = self._objectives_s.get(FIRST, math.inf)
        for stay in self._round:
            if stay.is_waiting and now_s - stay.entered_s > limit_s:
                stay.least = (now_s - stay.entered_s) / limit_s
                stay.share = stay.least * max(1.0, stay.ahead / max(1, self._served - stay.served))
        self._judge(now_s)

    def _judge(self, now_s: float) -> None:
        late = sorted((each for each in self._round if each.share > 1), key=lambda each: -each.share)
        if len(late) < LATE:
            return
        self._calm = 0
        found, begun = _Trouble(max(each.crowd for each in self._round), late), self._trouble
        if self._borne is not None and now_s < self._lifted_until_s and HELPED * found.least <= self._borne.least:
            if found.is_known:
                self._begin()
        elif begun is None or self.most > begun.fewer:
            self._cut(found)
        elif found.least > HELPED * begun.least:
            self._lift(found, now_s)
        elif found.is_known:
            self._cut(found)

    def _cut(self, found: _Trouble) -> None:
        crowd = median(each.crowd for each in found.late)
        self.most = max(found.fewer, crowd * min(LEAST_CUT, GOAL / found.share))
        self._trouble = self._trouble or found
        self._begin()

    def _lift(self, found: _Trouble, now_s: float) -> None:
        self.most, self._trouble, self._borne = math.inf, None, found
        self._lifted_until_s = now_s + self._hold_s
        self._hold_s = min(MOST_HOLD_S, 2 * self._hold_s)
        self._begin()

    def _raise(self) -> None:
        share = sorted(each.share for each in self._round)[-LATE]
        self._calm += 1
        if self._calm == CALM:
            self._trouble, self._hold_s = None, HOLD_S
        if share < GOAL and self._was_full:
            crowd = median(each.crowd for each in self._round)
            self.most = max(self.most, crowd + 1, crowd * GOAL / max(share, GOAL / MOST_RAISE))
        self._begin()

    def _begin(self) -> None:
        """Begin another round: what those take who are in already says little of the limit as it is now."""
        self._round, self._was_full = [], False
