"""Places on made-up servers of two stages: neither who waits for a first token nor who is in is more than is in time.

A server is a definition: first tokens are made one after another, `first_s` each, and what follows takes `rest_s`,
whoever else is in.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pagewire.router.concurrency_limit import LATE, ROUND, ConcurrencyLimit
from pagewire.router.places import Place, Places
from pagewire.router.refusals import Reason, Refused

TTFT_S, TPOT_S = 1.0, 0.1
OBJECTIVES = {"ttft": TTFT_S, "tpot": TPOT_S}


class OnAll(Places):
    """What there was before: a limit on all that are in, of which those that wait are only a part."""

    def __init__(self) -> None:
        super().__init__(OBJECTIVES)
        self.waiting = ConcurrencyLimit("nobody")


@dataclass
class World:
    """Requests that come at random before places, and a server behind them."""

    places: Places
    rate: float = 300.0
    first_s: float = 0.01
    rest_s: float = 1.0
    now_s: float = 0.0
    is_quiet: Callable[[float], bool] = lambda now_s: False  # nobody comes
    random: random.Random = field(default_factory=lambda: random.Random(7))
    took_s: list[tuple[float, float]] = field(default_factory=list)  # when each came, and its TTFT

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        came_s, free_s = self.now_s + self.random.expovariate(self.rate), self.now_s
        waiting: deque[tuple[float, Place]] = deque()
        running: list[tuple[float, int, Place]] = []
        while self.now_s < end_s:
            done_s = running[0][0] if running else math.inf
            self.now_s = min(came_s, done_s, free_s if waiting else math.inf)
            if self.now_s == done_s:
                self.places.leave(heapq.heappop(running)[2], self.now_s)
            elif self.now_s == came_s:
                came_s += self.random.expovariate(self.rate)
                if self.is_quiet(self.now_s):
                    continue
                if not waiting:
                    free_s = max(free_s, self.now_s + self.first_s)
                try:
                    waiting.append((self.now_s, self.places.enter(self.now_s)))
                except Refused:
                    continue
            else:
                begun_s, place = waiting.popleft()
                self.took_s.append((begun_s, self.now_s - begun_s))
                self.places.serve(place, self.now_s)
                heapq.heappush(running, (self.now_s + self.rest_s, len(self.took_s), place))
                free_s = self.now_s + self.first_s

    def shares(self, since_s: float) -> tuple[float, float]:
        """Of those that came since: answers in time over what can be served, and those that were late over all."""
        served = [took_s for begun_s, took_s in self.took_s if begun_s >= since_s]
        in_time = sum(took_s <= TTFT_S for took_s in served)
        return in_time / (self.now_s - since_s) * self.first_s, 1 - in_time / len(served)


def test_whoever_enters_is_one_of_those_that_wait_until_its_first_token_and_of_all_until_it_leaves() -> None:
    places = Places(OBJECTIVES)
    first, second, third = (places.enter(0.0) for _ in range(3))
    assert (places.waiting.inside, places.inside.inside) == (3, 3)
    places.serve(first, 0.1)
    assert (first.is_served, first.waiting.is_over, first.inside.is_over) == (True, True, False)
    assert (places.waiting.inside, places.inside.inside) == (2, 3)
    places.leave(first, 0.2)
    places.leave(second, 0.2)
    assert (places.waiting.inside, places.inside.inside) == (1, 1)
    places.forget(third)  # it goes on elsewhere, and still waits
    assert (places.waiting.inside, places.inside.inside) == (1, 1)
    places.serve(third, 0.3)
    assert (places.waiting.inside, places.inside.inside) == (0, 1)
    places.leave(third, 0.3)
    assert (places.waiting.inside, places.inside.inside) == (0, 0)
    assert (second.is_served, third.is_served) == (False, True)


def test_who_was_called_off_before_its_first_token_was_served_by_nobody() -> None:
    places = Places(OBJECTIVES)
    for place in [places.enter(0.0) for _ in range(4)]:
        places.leave(place, 0.5)
    served = places.enter(0.5)
    assert (served.waiting.served, served.inside.served) == (0, 0)
    places.serve(served, 0.5)
    places.leave(served, 0.5)
    after = places.enter(0.5)
    assert (after.waiting.served, after.inside.served) == (1, 1)


def test_a_late_first_token_cuts_both_and_what_comes_after_it_those_that_are_in() -> None:
    places = Places(OBJECTIVES)
    late = [places.enter(0.0) for _ in range(LATE)]
    for place in late:
        places.serve(place, 2 * TTFT_S)
    assert max(limit.most for limit in places.limits.values()) < math.inf
    for objective, took_s in (("tpot", 2 * TPOT_S), ("gap", 9.0)):
        places = Places(OBJECTIVES)
        late = [places.enter(0.0) for _ in range(LATE)]
        for place in late:
            places.serve(place, 0.1)
            places.learn(place, objective, took_s, 0.2)
        assert places.waiting.most == math.inf
        assert (places.inside.most < math.inf) == (objective == "tpot")


@pytest.mark.parametrize("is_served", [True, False])
def test_who_lost_its_pod_says_nothing_of_either(is_served: bool) -> None:
    places = Places(OBJECTIVES)
    lost = [places.enter(0.0) for _ in range(ROUND)]
    for place in lost:
        places.forget(place)  # the pod had not answered for long by then
    for place in lost:
        if is_served:
            places.serve(place, 9.0)
        places.leave(place, 9.0)
    assert {limit.most for limit in places.limits.values()} == {math.inf}
    assert {limit.inside for limit in places.limits.values()} == {0}


@pytest.mark.parametrize("which", ["waiting", "inside"])
def test_either_refuses_and_then_nothing_is_taken(which: str) -> None:
    places = Places(OBJECTIVES)
    places.enter(0.0)
    assert not places.is_full(1000)
    places.limits[which].most = 1
    assert places.is_full()
    for ask in (places.check, places.enter):
        with pytest.raises(Refused, match={"waiting": "wait for their first token", "inside": "are in"}[which]) as told:
            ask(0.0)
        assert told.value.reason is Reason.SLO_CONCURRENCY
    assert (places.waiting.inside, places.inside.inside) == (1, 1)


def test_without_objectives_there_is_no_limit() -> None:
    places = Places({})
    for _ in range(3 * ROUND):
        places.serve(places.enter(0.0), 1e6)
    places.enter(2e6)
    assert not places.is_full()


def refused_s(places: Places, now_s: float) -> float:
    with pytest.raises(Refused, match="1 and 2 are to be read") as told:
        places.check(now_s, 2)
    return told.value.retry_after_s


@pytest.mark.parametrize("which", ["waiting", "inside"])
def test_who_comes_behind_others_finds_what_they_leave(which: str) -> None:
    places = Places(OBJECTIVES)
    places.limits[which].most = 3
    places.enter(0.0)
    places.limits[which].most = 2
    assert not places.is_full()  # there is one for who comes behind nobody
    places.check(0.0)
    places.limits[which].most = 3
    for ahead, is_full in ((0, False), (1, False), (2, True), (3, True)):
        assert places.is_full(ahead) == is_full
        if is_full:
            with pytest.raises(Refused):
                places.check(0.0, ahead)
        else:
            places.check(0.0, ahead)
    told = [refused_s(places, now_s) for now_s in (0.0, 3600.0)]
    assert told == [1.0, 1.0], "those ahead never came, and nobody waited for a place"
    places.enter(0.0)  # those ahead have theirs
    places.enter(0.0)
    assert places.is_full()


@pytest.mark.parametrize("load", [1.5, 3.0, 10.0])
@pytest.mark.parametrize("rest_s", [0.05, 1.0, 5.0])
def test_under_overload_nearly_all_that_can_be_served_in_time_is(load: float, rest_s: float) -> None:
    world = World(Places(OBJECTIVES), rate=load * 100, rest_s=rest_s)
    world.run(80.0)
    goodput, late = world.shares(30.0)
    assert goodput >= 0.9
    assert late <= 0.02


def test_after_a_lull_no_more_come_in_than_are_served_in_time() -> None:
    """Three seconds of ten in which nobody comes and all that were in end; then they come as before."""

    def shares(places: Places) -> tuple[float, float]:
        world = World(places, rest_s=3.0, is_quiet=lambda now_s: now_s % 10 < 3)
        world.run(130.0)
        return world.shares(30.0)

    goodput, late = shares(Places(OBJECTIVES))
    assert goodput >= 0.9 * 0.7
    assert late <= 0.01
    assert shares(OnAll())[1] > 0.05


@pytest.mark.parametrize("most", [1.0, 2.5, 3.0, 10.0, 50.0, 300.0])
def test_a_limit_that_is_too_low_rises_where_all_that_wait_are_served_at_once(most: float) -> None:
    """A step takes all that wait, so that nobody waits after it: whoever comes next sees few before it."""
    places, now_s = Places(OBJECTIVES), 0.0
    places.waiting.most = most
    for _ in range(200):
        waiting: list[Place] = []
        with contextlib.suppress(Refused):
            while len(waiting) < 1000:
                waiting.append(places.enter(now_s))
        now_s += 0.05
        for place in waiting:
            places.serve(place, now_s)
            places.leave(place, now_s)
    assert places.waiting.most >= 1000


def test_a_limit_that_a_stall_left_is_no_limit_once_all_are_fast() -> None:
    """Requests come at random, 100 a second; each step takes all that wait, and one took 20 s."""
    places, draw, now_s, come_s = Places(OBJECTIVES), random.Random(7), 0.0, 0.0
    refused_s: list[float] = []
    while now_s < 300.0:
        waiting = []
        while come_s <= now_s:
            come_s += draw.expovariate(100.0)
            try:
                waiting.append(places.enter(come_s))
            except Refused:
                refused_s.append(come_s)
        now_s = max(now_s, come_s) + (20.0 if 20 < now_s < 21 else 0.05) + 0.002 * len(waiting)
        for place in waiting:
            places.serve(place, now_s)
            places.leave(place, now_s)
    assert len(refused_s) > 500
    assert max(refused_s) < 100.0
