"""The limit on requests at once, on made-up servers: found where answers are late for their number, and nowhere else.

A server is a definition: `seats` requests are served side by side for `service_s` each, the others wait in turn. Its
capacity is seats / service_s, and it is known of every request what it took.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagewire.router.concurrency_limit import (
    CALM,
    FEWER,
    GOAL,
    HELPED,
    HOLD_S,
    LATE,
    LEAST_CUT,
    MOST_RAISE,
    ROUND,
    ConcurrencyLimit,
    Stay,
)
from pagewire.router.refusals import Reason, Refused

TTFT_S, TPOT_S = 1.0, 0.1


def limit_of(objectives_s: dict[str, float], stay_s: float = math.inf) -> ConcurrencyLimit:
    return ConcurrencyLimit("are in", objectives_s, stay_s=stay_s)


@dataclass
class World:
    """Requests that come at random before a limit, and a server behind it."""

    rate: float
    seats: int = 8
    service_s: float = 0.2
    giants: float = 0.0  # share of requests that take `GIANT` times as long
    limit: ConcurrencyLimit = field(default_factory=lambda: limit_of({}, TTFT_S))
    now_s: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(7))
    served: list[tuple[float, float]] = field(default_factory=list)  # when each came, and what it took
    refused_s: list[float] = field(default_factory=list)
    told: list[tuple[Reason, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._number = 0
        self._next_s = self.random.expovariate(self.rate)
        self._waiting: deque[tuple[float, float, Stay]] = deque()  # came, service, stay
        self._running: list[tuple[float, int, float, Stay]] = []  # ends, number, came, stay

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            done_s = self._running[0][0] if self._running else math.inf
            self.now_s = min(end_s, done_s, self._next_s)
            if self.now_s == end_s:
                return
            if done_s <= self._next_s:
                self._end(*heapq.heappop(self._running)[2:])
            else:
                self._next_s += self.random.expovariate(self.rate)
                self._come()
            while self._waiting and len(self._running) < self.seats:
                came_s, service_s, stay = self._waiting.popleft()
                self._number += 1
                heapq.heappush(self._running, (self.now_s + service_s, self._number, came_s, stay))

    def _come(self) -> None:
        service_s = self.service_s * self.random.uniform(0.8, 1.2) * (10 if self.random.random() < self.giants else 1)
        try:
            self._waiting.append((self.now_s, service_s, self.limit.enter(self.now_s)))
        except Refused as refusal:
            self.told.append((refusal.reason, refusal.retry_after_s))
            self.refused_s.append(self.now_s)

    def _end(self, came_s: float, stay: Stay) -> None:
        took_s = self.now_s - came_s
        self.served.append((came_s, took_s))
        self.limit.leave(stay, self.now_s, is_served=True)

    @property
    def capacity(self) -> float:
        return self.seats / self.service_s

    def goodput(self, since_s: float) -> float:
        """Return the answers a second in time, of those that came since."""
        return sum(came_s >= since_s and took_s <= TTFT_S for came_s, took_s in self.served) / (self.now_s - since_s)


@pytest.mark.parametrize("load", [1.5, 3.0, 10.0])
@pytest.mark.parametrize("seats", [1, 8, 64])
def test_under_overload_nearly_all_that_can_be_served_in_time_is(load: float, seats: int) -> None:
    service_s = 0.02 if seats == 1 else 0.2
    world = World(rate=load * seats / service_s, seats=seats, service_s=service_s)
    world.run(20.0)
    world.run(60.0)
    assert world.goodput(20.0) >= 0.9 * world.capacity
    late = [took_s for came_s, took_s in world.served if came_s >= 20.0 and took_s > TTFT_S]
    assert len(late) <= 0.1 * len(world.served)
    assert all(reason is Reason.SLO_CONCURRENCY and 1.0 <= after_s <= 60.0 for reason, after_s in world.told)


def test_what_is_served_in_time_is_never_refused() -> None:
    world = World(rate=0.7 * 40)
    world.run(300.0)
    assert world.limit.most == math.inf
    assert world.refused_s == []


def test_a_limit_that_overload_left_rises_with_what_the_server_can_do() -> None:
    world = World(rate=3 * 40)
    world.run(30.0)
    assert world.limit.most < 60
    world.seats = 32
    world.run(20.0)
    begun_s = world.now_s
    world.run(30.0)
    assert world.goodput(begun_s) >= 0.95 * 120


def test_a_limit_that_overload_left_refuses_nobody_once_it_is_over() -> None:
    world = World(rate=3 * 40)
    world.run(30.0)
    world.rate = 20.0
    world.run(10.0)
    begun_s = world.now_s
    world.run(100.0)
    assert not [at_s for at_s in world.refused_s if at_s >= begun_s]


@pytest.mark.parametrize("rate", [2.0, 20.0])
def test_who_is_late_whatever_the_load_is_not_refused_for_it(rate: float) -> None:
    world = World(rate=rate, seats=100, service_s=1.5)  # nobody waits, all are late
    world.run(1200.0)
    assert len(world.refused_s) <= 0.05 * len(world.served)


def test_a_share_of_giants_that_are_always_late_costs_the_others_little() -> None:
    world = World(rate=20.0, seats=100, giants=0.2)
    world.run(1200.0)
    assert len(world.refused_s) <= 0.08 * len(world.served)
    assert world.goodput(0.0) >= 0.9 * 0.8 * 20.0


def round_of(
    limit: ConcurrencyLimit,
    share: float,
    *,
    crowd: int = 10,
    now_s: float = 0.0,
    tpot: float | None = None,
    late: int = ROUND,
    stay: float = 0.0,
) -> None:
    """Let a round pass in which so many were in, and somebody was refused if that was the limit: one of `one_of`.

    `late` of it took this share of the TTFT, and `tpot` of the time per token; the others nothing. All stayed for
    `stay` of the TTFT.
    """
    limit.inside += crowd - 1
    one_of = math.ceil(limit.most / ROUND) if limit.most < math.inf else 1
    for number in range(ROUND * one_of):
        one = limit.enter(now_s)
        if crowd + 1 > limit.most:
            with pytest.raises(Refused):
                limit.enter(now_s)
        limit.learn(one, "ttft", share * TTFT_S if number < late * one_of else 0.0, now_s)
        if tpot is not None:
            limit.learn(one, "tpot", tpot * TPOT_S, now_s)
        limit.leave(one, now_s + stay * TTFT_S, is_served=True)
        if limit.most < crowd:
            break  # it was cut, and is over
    limit.inside -= crowd - 1


def test_a_late_round_cuts_to_what_should_be_in_time_by_littles_law() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 2.0, crowd=50)
    assert limit.most == 50 * GOAL / 2.0
    assert limit.is_known()
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 1.0, crowd=50)
    round_of(limit, 5.0, crowd=50, late=LATE - 1)
    assert limit.most == math.inf
    round_of(limit, 1.0 / LEAST_CUT * GOAL + 1e-3, crowd=50, late=LATE)
    assert limit.most == 50 * min(LEAST_CUT, GOAL / (1.0 / LEAST_CUT * GOAL + 1e-3))
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 1e9, crowd=50)
    assert limit.most == 50 / FEWER


def test_a_round_in_time_raises_a_limit_that_was_reached_and_no_other() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 2.0, crowd=50)
    assert limit.most == 20
    round_of(limit, 0.1, crowd=10)
    assert limit.most == 20
    round_of(limit, 0.1, crowd=20)
    assert limit.most == 20 * MOST_RAISE
    round_of(limit, 0.75, crowd=22)
    assert limit.most == 22 * GOAL / 0.75
    round_of(limit, GOAL, crowd=23)
    assert limit.most == 22 * GOAL / 0.75
    small = limit_of({"ttft": TTFT_S})
    round_of(small, 100.0, crowd=4)
    assert small.most == 1
    round_of(small, 0.79, crowd=1)
    assert small.most == 2


def test_cuts_that_change_nothing_are_taken_back_for_longer_each_time() -> None:
    limit, now_s = limit_of({"ttft": TTFT_S}), 0.0
    for hold_s in (HOLD_S, 2 * HOLD_S, 4 * HOLD_S):
        round_of(limit, 4.0, crowd=40, now_s=now_s)
        assert limit.most == 40 / FEWER
        round_of(limit, 4.0, crowd=10, now_s=now_s)
        assert limit.most == math.inf
        now_s += hold_s - 1
        round_of(limit, 4.0, crowd=40, now_s=now_s)
        assert limit.most == math.inf
        now_s += 1
    round_of(limit, 4.0, crowd=40, now_s=now_s)
    round_of(limit, 4.0 * HELPED, crowd=10, now_s=now_s)  # it helped: go on
    assert limit.most == pytest.approx(10 * GOAL / (4.0 * HELPED))
    round_of(limit, 1.1, crowd=3, now_s=now_s)
    assert limit.most == pytest.approx(3 * GOAL / 1.1)
    for _ in range(CALM):
        round_of(limit, 0.9, crowd=2, now_s=now_s)
    round_of(limit, 4.0, crowd=2, now_s=now_s)  # another trouble: it begins anew, and as patient as at first
    assert limit.most == 1
    round_of(limit, 4.0, crowd=1, now_s=now_s)
    assert limit.most == math.inf
    round_of(limit, 4.0, crowd=40, now_s=now_s + HOLD_S)
    assert limit.most == 10


def test_what_is_borne_is_not_all_that_may_come() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 4.0, crowd=40)
    round_of(limit, 4.0, crowd=10)
    round_of(limit, 4.0 / HELPED, crowd=100)
    assert limit.most == math.inf
    round_of(limit, 4.0 / HELPED + 0.1, crowd=100)
    assert limit.most == 25


def test_whether_fewer_help_is_told_by_those_that_were_served() -> None:
    limit = limit_of({"ttft": TTFT_S}, TTFT_S)
    round_of(limit, 4.0, crowd=40)
    stays = [limit.enter(0.0) for _ in range(10)]
    for at_s in (1.5, 2.0, 2.3):
        with pytest.raises(Refused):
            limit.enter(at_s * TTFT_S)
        assert limit.most == 10  # late they are, but it may have been four times as late before
    for stay in stays:
        assert limit.most == 10
        limit.leave(stay, 2.3 * TTFT_S, is_served=True)
    assert limit.most < 10
    limit = limit_of({"ttft": TTFT_S}, TTFT_S)
    round_of(limit, 4.0, crowd=40)
    for _ in range(10):
        limit.enter(0.0)
    with pytest.raises(Refused):
        limit.enter(4.0 * HELPED * TTFT_S)
    limit.enter(4.0 * HELPED * TTFT_S + 0.01)  # longer than what would have helped
    assert limit.most == math.inf


def test_who_leaves_with_nothing_known_of_it_counts_for_nothing() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 2.0, crowd=50)
    limit.inside = 19
    for number in range(3 * ROUND):  # two of three fail or are called off
        stay = limit.enter(0.0)
        with pytest.raises(Refused):
            limit.enter(0.0)
        if number % 3 == 0:
            limit.learn(stay, "ttft", 0.1, 0.0)
        assert limit.most == 20
        limit.leave(stay, 0.0, is_served=number % 3 == 0)
        if number == 3 * ROUND - 3:
            break
    assert limit.most == 22


def test_who_waits_for_too_long_is_late_before_it_is_served() -> None:
    limit = limit_of({}, TTFT_S)
    stays = [limit.enter(0.001 * number) for number in range(100)]
    for stay in stays[:5]:
        limit.leave(stay, 0.5 * TTFT_S, is_served=True)
    limit.enter(TTFT_S)
    assert limit.most == math.inf
    limit.enter(TTFT_S + 0.0065)  # the sixth and seventh have waited for more than they may
    assert limit.most == math.inf
    with pytest.raises(Refused):
        limit.enter(TTFT_S + 0.0075)
    # Those three were the sixth to the eighth: five or more before each, five served since.
    shares = [(TTFT_S + 0.0075 - 0.001 * number) / TTFT_S * number / 5 for number in (5, 6, 7)]
    assert limit.most == pytest.approx(7 * min(LEAST_CUT, GOAL / min(shares)))


def test_what_entered_before_the_limit_changed_says_nothing_of_it() -> None:
    limit = limit_of({"ttft": TTFT_S})
    early = [limit.enter(0.0) for _ in range(3 * ROUND)]
    for stay in early[:LATE]:
        limit.learn(stay, "ttft", 2.0, 0.0)
    most = limit.most
    assert most < math.inf
    for stay in early:
        limit.learn(stay, "ttft", 5.0, 0.0)
        limit.leave(stay, 0.0, is_served=True)
    assert limit.most == most
    assert limit.inside == 0


def test_any_objective_cuts_and_those_that_are_known_raise() -> None:
    limit = limit_of({"ttft": TTFT_S, "tpot": TPOT_S})
    round_of(limit, 0.5, tpot=1.0)
    assert limit.most == math.inf
    round_of(limit, 0.5, tpot=1.25)
    assert limit.most == pytest.approx(10 * GOAL / 1.25)
    round_of(limit, 0.5, tpot=0.9, crowd=6)
    assert limit.most == pytest.approx(10 * GOAL / 1.25)
    round_of(limit, 0.5, crowd=6)  # answers of one token have no time per token
    assert limit.most == 7
    round_of(limit, 2.0, crowd=7, tpot=0.1)
    assert limit.most == 7 * GOAL / 2.0


def test_an_objective_that_is_not_set_changes_nothing() -> None:
    limit = limit_of({"tpot": TPOT_S})
    round_of(limit, 100.0, crowd=100)
    assert limit.most == math.inf
    limit.enter(0.0)
    limit.enter(1e6)
    assert limit.most == math.inf
    nothing = ConcurrencyLimit("are in")
    round_of(nothing, 100.0, crowd=100, tpot=100.0)
    assert nothing.most == math.inf
    assert not nothing.is_known()


def test_nine_of_ten_are_to_be_in_time() -> None:
    assert (ROUND - (LATE - 1)) / ROUND == 0.9


def test_a_limit_is_lifted_for_half_a_minute_at_first_and_for_ten_at_most() -> None:
    limit, now_s = limit_of({"ttft": TTFT_S}), 0.0
    for hold_s in (30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0):
        round_of(limit, 4.0, crowd=40, now_s=now_s)
        round_of(limit, 4.0, crowd=10, now_s=now_s)
        assert limit.most == math.inf
        for at_s in (0.0, hold_s - 0.001):
            round_of(limit, 4.0, crowd=40, now_s=now_s + at_s)
            assert limit.most == math.inf
        now_s += hold_s
    for _ in range(4):  # a late round between them: that is not five in a row
        round_of(limit, 0.9, crowd=2, now_s=now_s)
    round_of(limit, 4.0, crowd=40, now_s=now_s)
    round_of(limit, 0.9, crowd=2, now_s=now_s)
    round_of(limit, 4.0, crowd=10, now_s=now_s)
    assert limit.most == math.inf, "the trouble is still the same"
    round_of(limit, 4.0, crowd=40, now_s=now_s + 599.0)
    assert limit.most == math.inf
    for _ in range(5):
        round_of(limit, 0.9, crowd=2, now_s=now_s + 599.0)
    round_of(limit, 4.0, crowd=40, now_s=now_s + 600.0)
    round_of(limit, 4.0, crowd=10, now_s=now_s + 600.0)
    assert limit.most == math.inf
    round_of(limit, 4.0, crowd=40, now_s=now_s + 630.0)
    assert limit.most == 10


def test_a_round_that_is_borne_is_over_and_another_begins() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 4.0, crowd=40)
    round_of(limit, 4.0, crowd=10)
    round_of(limit, 4.0, crowd=40)  # borne
    round_of(limit, 8.0, crowd=40)  # twice as bad: not a word of the round before is in this one
    assert limit.most == 10


def test_what_is_borne_is_the_least_of_those_that_were_late() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 4.0, crowd=40)
    limit.inside = 9
    for share in (9.0, 8.0, 4.0):
        stay = limit.enter(0.0)
        limit.learn(stay, "ttft", share * TTFT_S, 0.0)
        limit.leave(stay, 0.0, is_served=True)
    limit.inside = 0
    assert limit.most == math.inf
    round_of(limit, 4.0 / HELPED + 0.1, crowd=40)
    assert limit.most == 10


def test_who_was_served_and_said_nothing_more_took_nothing() -> None:
    limit = limit_of({"tpot": TPOT_S})
    round_of(limit, 0.0, crowd=50, tpot=2.0)
    assert limit.most == 20
    round_of(limit, 0.0, crowd=20)
    assert limit.most == 22


def test_the_share_of_a_round_is_that_of_the_third_from_above() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 2.0, crowd=50)
    limit.inside = 19
    for number in range(ROUND):
        stay = limit.enter(0.0)
        with pytest.raises(Refused):
            limit.enter(0.0)
        limit.learn(stay, "ttft", TTFT_S * (0.9 if number < LATE else 0.1), 0.0)
        limit.leave(stay, 0.0, is_served=True)
    assert limit.most == 20


def test_a_limit_that_nobody_was_refused_by_stays() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 2.0, crowd=50)
    round_of(limit, GOAL, crowd=20)  # somebody is refused in this one, and not in the next
    limit.inside = 19
    for _ in range(ROUND):
        stay = limit.enter(0.0)
        limit.learn(stay, "ttft", 0.1 * TTFT_S, 0.0)
        limit.leave(stay, 0.0, is_served=True)
    assert limit.most == 20


def test_whoever_comes_knows_how_many_are_in_and_how_many_were_served() -> None:
    limit = limit_of({}, TTFT_S)
    stays = [limit.enter(0.0) for _ in range(10)]
    assert [stay.crowd for stay in stays] == list(range(1, 11))
    for stay in stays[:6]:
        limit.leave(stay, 0.0, is_served=stay in stays[:4])  # two were called off: nobody served them
    late = limit.enter(0.0)
    assert (late.crowd, late.served - stays[0].served) == (5, 4)
    assert [stay.is_over for stay in stays] == [True] * 6 + [False] * 4
    assert not any(stay.is_guess for stay in stays)


def test_who_lost_its_pod_tells_no_more_of_the_crowd() -> None:
    limit = limit_of({"ttft": TTFT_S}, 2 * TTFT_S)
    lost = [limit.enter(0.0) for _ in range(ROUND)]
    limit.learn(lost[0], "ttft", 0.5 * TTFT_S, 0.5 * TTFT_S)
    for stay in lost:
        limit.forget(stay)
    limit.enter(5.0 * TTFT_S)  # who goes on elsewhere has waited for long, and whoever comes is not told so
    assert limit.most == math.inf
    for stay in lost:
        limit.leave(stay, 6.0 * TTFT_S, is_served=True)
    assert (limit.inside, limit.most) == (1, math.inf)


@pytest.mark.parametrize(("waited", "is_late"), [(1.0, False), (1.001, True)])
def test_who_was_called_off_after_it_had_waited_too_long_was_late(waited: float, is_late: bool) -> None:
    limit = limit_of({}, TTFT_S)
    for _ in range(20):
        limit.enter(0.0)
    early = limit._round[:LATE]
    for stay in early:
        assert limit.most == math.inf
        limit.leave(stay, waited * TTFT_S, is_served=False)
    assert (limit.most < math.inf) == is_late
    assert [stay.share for stay in early] == [waited * is_late] * LATE


def test_what_it_took_is_known_once_it_is_over_and_not_before() -> None:
    limit = limit_of({}, TTFT_S)
    round_of(limit, 0.0, crowd=40, stay=4.0)
    assert limit.most == 10
    stays = [limit.enter(0.0) for _ in range(10)]
    with pytest.raises(Refused):
        limit.enter(1.5 * TTFT_S)
    assert [stay.is_guess for stay in stays] == [True] * 10
    limit.leave(stays[0], 1.6 * TTFT_S, is_served=True)
    assert (stays[0].is_guess, stays[0].share, stays[1].is_guess) == (False, 1.6, True)


@pytest.mark.parametrize(("served", "turns"), [(0, 4.0), (1, 4.0), (2, 2.0), (4, 1.0), (9, 1.0)])
def test_what_a_wait_should_come_to_is_told_by_who_was_served_meanwhile(served: int, turns: float) -> None:
    limit = limit_of({}, 2.0)
    for _ in range(5):  # whom nobody waits for
        limit.leave(limit.enter(0.0), 0.0, is_served=True)
    limit._round.clear()
    late = [limit.enter(9.0) for _ in range(LATE)]
    for stay in late:
        stay.crowd = 5
    others = [limit.enter(9.0) for _ in range(9)]
    for stay in others[:served]:
        limit.leave(stay, 9.1, is_served=True)
    for stay in others:
        limit.forget(stay)
    limit.inside = 100
    with pytest.raises(Refused):
        limit.enter(12.0)
    assert [stay.least for stay in late] == [1.5] * LATE
    assert [stay.share for stay in late] == [1.5 * turns] * LATE


def test_a_refusal_says_when_places_came_free_while_all_were_taken() -> None:
    limit = limit_of({"ttft": TTFT_S})
    round_of(limit, 4.0, crowd=4)
    assert limit.most == 1
    now_s = 0.0
    for _ in range(100):
        stay = limit.enter(now_s)
        with pytest.raises(Refused):
            limit.enter(now_s)
        now_s += 8.0
        limit.leave(stay, now_s, is_served=False)  # of which nothing is known
        now_s += 100.0  # a place is free: nobody's wait
    limit.enter(now_s)
    with pytest.raises(Refused) as raised:
        limit.enter(now_s)
    assert 7.0 < raised.value.retry_after_s < 8.1
    with pytest.raises(Refused) as raised:
        limit.enter(now_s + 20.0)
    assert raised.value.retry_after_s == 20.0


class Limits(RuleBasedStateMachine):
    """Whoever comes, learns and leaves in whatever order: places are counted, and there is always one."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = limit_of({"ttft": TTFT_S, "tpot": TPOT_S}, 20.0)
        self.stays: list[Stay] = []
        self.now_s = 0.0

    @rule(many=st.integers(1, 30))
    def come(self, many: int) -> None:
        for _ in range(many):
            try:
                self.stays.append(self.limit.enter(self.now_s))
            except Refused:
                assert len(self.stays) + 1 > self.limit.most

    @rule(many=st.integers(1, 30), share=st.floats(0.0, 5.0), objective=st.sampled_from(["ttft", "tpot"]))
    def hear(self, many: int, share: float, objective: str) -> None:
        for stay in self.stays[:many]:
            self.limit.learn(stay, objective, share, self.now_s)

    @rule(many=st.integers(1, 30), seconds=st.floats(0.0, 100.0), is_served=st.booleans())
    def go(self, many: int, seconds: float, is_served: bool) -> None:
        self.now_s += seconds
        for stay in self.stays[:many]:
            self.limit.leave(stay, self.now_s, is_served=is_served)
        del self.stays[:many]

    @invariant()
    def counted(self) -> None:
        assert self.limit.inside == len(self.stays)
        assert self.limit.most >= 1


Limits.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLimits = Limits.TestCase


def test_the_last_place_is_one_and_behind_somebody_it_is_his() -> None:
    limit = limit_of({})
    limit.most = 2
    limit.enter(0.0)
    assert not limit.is_reached()
    assert limit.is_reached(1)
    limit.enter(0.0)
    assert limit.is_reached()
