"""How many requests may be in at once so that those who are meet their objectives: learned from what became of others.

Pure: time is a parameter. Knows how many are in and what they took over what they may take, nothing of why: a pod that
has room but no seat, a router short of processor time, a neighbour on the machine. What they are in is not its concern
either (`places.py` has two).

    round    `ROUND` requests that entered since the limit last changed or was found to be right: the first, while
             there is none, else one of so many that they are spread over as many as the limit, and
             whoever takes the last place
    share    the most that one of them took of an objective, or of what a stay may last; of who is in for longer than
             that, what it should come to: its stay so far, times those that were before it over those that have been
             served since. Of a round: the least of the `LATE` largest
    crowd    how many were in as one entered: of those that are late the median, of a round in time the most

    share > 1, known with the third that is late    limit = crowd x GOAL / share, of those that are late
    all are over, share < GOAL, some were refused   limit = crowd x GOAL / share, at most `MOST_RAISE` x crowd, at least
                                                    crowd + 1, where that is more than it was

Where many are served at once, and then nobody is in, the first to come see a small crowd, however many come after
them: hence the spread, and the most.

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
from types import MappingProxyType

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
NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class Stay:
    """A place that was taken. `crowd` were in then, with this one, and `served` had been served until then.

    `share` is what it took, or should come to; `least` what it has taken already.
    """

    entered_s: float
    crowd: int
    served: int
    share: float = 0.0
    least: float = 0.0
    is_guess: bool = False  # it still waits, and is late already
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
        return not any(each.is_guess for each in self.late[:LATE])

    @property
    def fewer(self) -> float:
        """With how few of them it should be far better, and the least that one cut leaves."""
        return max(1.0, self.most / FEWER)


class ConcurrencyLimit:
    """The limit on those who `who` says, by objectives in seconds and how long a stay may last; without any, none.

    Every `enter` that returned is followed by exactly one `leave`.
    """

    def __init__(self, who: str, objectives_s: Mapping[str, float] = NOTHING, *, stay_s: float = math.inf) -> None:
        self.most = math.inf  # requests at once
        self.inside = 0
        self._who = who
        self._objectives_s = objectives_s
        self._stay_s = stay_s
        self._round: list[Stay] = []
        self._passed = 0  # since one joined the round
        self._was_full = False
        self._served = 0
        self._trouble: _Trouble | None = None
        self._calm = 0  # rounds in time, in a row
        self._hold_s = HOLD_S
        self._lifted_until_s = -math.inf
        self._borne: _Trouble | None = None  # what could not be helped
        self._drain = DrainRate()

    def is_known(self) -> bool:
        """True while there is a limit."""
        return self.most < math.inf

    def is_reached(self, ahead: int = 0) -> bool:
        """Tell whether there is no place for one more behind `ahead` others that are to have theirs first."""
        return self.inside + ahead + 1 > self.most

    def check(self, now_s: float, ahead: int = 0) -> None:
        """Raise Refused, with the time in which a place should come free, where the limit `is_reached`."""
        self._look_at_long_stays(now_s)
        if self.is_reached(ahead):
            self._was_full = True
            if self.is_reached():  # else those ahead may never take what is left
                self._drain.full(now_s)
            others = f" and {ahead} are to be read" if ahead else ""
            message = (
                f"as many requests {self._who} as were in time, {self.inside}{others}: with more of them answers were"
                " late"
            )
            raise Refused(Reason.SLO_CONCURRENCY, message, retry_after_s=self._drain.retry_after_s(1, now_s))

    def enter(self, now_s: float) -> Stay:
        """Take a place; raises Refused as `check` does."""
        self.check(now_s)
        self.inside += 1
        stay = Stay(entered_s=now_s, crowd=self.inside, served=self._served)
        self._passed += 1
        if len(self._round) < ROUND and (self._passed >= self._one_of or self.is_reached()):
            self._round.append(stay)
            self._passed = 0
        return stay

    @property
    def _one_of(self) -> int:
        """Of how many that enter one joins a round."""
        return math.ceil(self.most / ROUND) if self.is_known() else 1

    def learn(self, stay: Stay, objective: str, took_s: float, now_s: float) -> None:
        """Take note of the seconds that somebody took, where an objective says how many it may; no other is known."""
        limit_s = self._objectives_s.get(objective)
        if limit_s is not None:
            self._took(stay, took_s / limit_s, now_s)

    def forget(self, stay: Stay) -> None:
        """What becomes of somebody says nothing of the crowd from now on: its pod was lost, or it was called off."""
        if stay in self._round:
            self._round.remove(stay)

    def leave(self, stay: Stay, now_s: float, *, is_served: bool) -> None:
        """Give a place back; of who was not served it is known how long it waited, once that was too long."""
        stay.is_over, stay.is_guess = True, False
        self._served += is_served
        share = (now_s - stay.entered_s) / self._stay_s
        if is_served or share > 1:
            self._took(stay, share, now_s)
        else:
            self.forget(stay)
        self.inside -= 1
        self._drain.freed(now_s, is_full=False)
        if len(self._round) == ROUND and all(each.is_over for each in self._round):
            self._raise()

    def _took(self, stay: Stay, share: float, now_s: float) -> None:
        stay.share = stay.least = max(stay.least, share)
        self._judge(now_s)

    def _look_at_long_stays(self, now_s: float) -> None:
        """Take note of who is in for longer than it may: of a queue that grows, its end is known late."""
        long = [stay for stay in self._round if not stay.is_over and now_s - stay.entered_s > self._stay_s]
        for stay in long:
            stay.is_guess = True
            stay.least = (now_s - stay.entered_s) / self._stay_s
            stay.share = stay.least * max(1.0, (stay.crowd - 1) / max(1, self._served - stay.served))
        if long:
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
            crowd = max(each.crowd for each in self._round)
            self.most = max(self.most, crowd + 1, crowd * GOAL / max(share, GOAL / MOST_RAISE))
        self._begin()

    def _begin(self) -> None:
        """Begin another round: what those take who are in already says little of the limit as it is now."""
        self._round, self._was_full = [], False
