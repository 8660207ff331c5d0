"""Breakers and ejection: who fails is kept out and comes back, never too many, and none when all are in trouble."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagewire.router.breaker import MAX_OPEN_S, PROBES, Breaker, State
from pagewire.router.config import RouterConfig
from pagewire.router.outliers import (
    HALF_LIFE_S,
    MIN_ATTEMPTS,
    SLOWNESS,
    SWEEP_S,
    Cause,
    Outliers,
    Result,
    Rules,
)

RULES = Rules(failures=3, open_s=10.0, max_share=0.3, panic_share=0.5)


def breaker() -> Breaker:
    return Breaker(failures=3, open_s=10.0)


def attempt(of: Breaker, is_good: bool | None, now_s: float) -> bool:
    return of.end(of.begin(now_s), is_good, now_s)


def test_failures_in_a_row_open_it_and_probes_that_succeed_close_it() -> None:
    each = breaker()
    for is_good in (False, False, True, False, False, None):
        assert not attempt(each, is_good, 0.0)
    assert attempt(each, False, 0.0)
    assert each.state(9.9) is State.OPEN
    assert not each.takes(9.9)
    turns = []
    for _ in range(PROBES):
        assert each.takes(10.0)
        turns.append(each.begin(10.0))
    assert not each.takes(10.0)
    each.end(turns[0], True, 11.0)
    assert each.state(11.0) is State.HALF_OPEN
    each.end(turns[1], True, 11.0)
    assert each.state(11.0) is State.CLOSED


def test_a_probe_that_fails_opens_it_for_longer_and_a_good_while_forgives() -> None:
    each = breaker()
    now_s = 0.0
    for times in range(1, 60):
        while not attempt(each, False, now_s):
            pass
        assert each.until_s - now_s == min(MAX_OPEN_S, 10.0 * times)
        now_s = each.until_s
    for _ in range(PROBES):
        attempt(each, True, now_s)
    now_s += MAX_OPEN_S
    while not attempt(each, False, now_s):
        pass
    assert each.until_s - now_s == 10.0


def test_what_began_before_says_nothing_of_now_and_a_cancelled_probe_makes_room() -> None:
    each = breaker()
    old = each.begin(0.0)
    while not attempt(each, False, 0.0):
        pass
    each.end(old, True, 10.0)
    assert each.state(10.0) is State.HALF_OPEN
    each.end(old, False, 10.0)
    turns = [each.begin(10.0) for _ in range(PROBES)]
    assert not each.takes(10.0)
    each.end(turns[0], None, 10.0)
    assert each.takes(10.0)


def test_one_failed_probe_opens_it_anew_and_the_next_probes_begin_from_nothing() -> None:
    each = breaker()
    while not attempt(each, False, 0.0):
        pass
    turns = [each.begin(10.0) for _ in range(PROBES + 1)]  # one more than should
    assert each.end(turns[-1], False, 10.0) is False  # it was no probe
    assert each.end(turns[0], True, 10.0) is False
    assert each.end(turns[1], False, 10.0) is True
    assert (each.state(10.0), each.until_s) == (State.OPEN, 30.0)
    for number in range(PROBES):
        assert each.takes(30.0)
        assert attempt(each, True, 30.0) is False
        assert each.state(30.0) is (State.CLOSED if number == PROBES - 1 else State.HALF_OPEN)
    assert [attempt(each, False, 30.0) for _ in range(3)] == [False, False, True]


def test_a_probe_that_says_nothing_makes_room_for_one() -> None:
    each = breaker()
    while not attempt(each, False, 0.0):
        pass
    turns = [each.begin(10.0) for _ in range(PROBES)]
    assert each.end(turns[0], None, 10.0) is False
    assert each.takes(10.0)
    each.begin(10.0)
    assert not each.takes(10.0)


def test_what_fails_while_it_is_open_does_not_keep_it_open() -> None:
    each = breaker()
    while not attempt(each, False, 0.0):
        pass
    assert [attempt(each, False, 5.0) for _ in range(9)] == [False] * 9
    assert each.until_s == 10.0


@pytest.mark.parametrize(
    ("closed_s", "failed_s", "times"),
    [
        (10.0, 20.0, 2),  # closed for 10 s
        (200.0, 250.0, 2),
        (200.0, 200.0 + MAX_OPEN_S - 1, 2),  # though it has not been open for longer than that
        (200.0, 200.0 + MAX_OPEN_S, 1),
        (None, 20.0, 2),  # probes fail
        (None, 1000.0, 2),  # nobody has asked for long, which says nothing of the pod
    ],
)
def test_it_opens_for_longer_until_it_has_been_closed_for_a_good_while(
    closed_s: float | None, failed_s: float, times: int
) -> None:
    each = breaker()
    while not attempt(each, False, 0.0):
        pass
    if closed_s is not None:
        for _ in range(PROBES):
            attempt(each, True, closed_s)
        assert each.state(closed_s) is State.CLOSED
    while not attempt(each, False, failed_s):
        pass
    assert each.until_s == failed_s + 10.0 * times


def fail(outliers: Outliers, pod: str, now_s: float, times: int = 3) -> dict[str, Cause]:
    found: dict[str, Cause] = {}
    for _ in range(times):
        found |= outliers.end(pod, outliers.begin(pod, now_s), Result(False), now_s)
    return found


def pods(n: int) -> list[str]:
    return [f"d{i}" for i in range(n)]


@pytest.mark.parametrize(("n", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (7, 2), (10, 3), (100, 30)])
def test_no_more_are_ejected_than_the_ceiling_allows(n: int, most: int) -> None:
    outliers = Outliers(RULES)
    for pod in pods(n):
        assert fail(outliers, pod, 0.0) == {pod: Cause.FAILURES_IN_A_ROW}
    assert len(outliers.ejected(pods(n), n, 1.0)) == most == RULES.max_ejected(n)
    assert outliers.ejected(pods(n), n, 10.0) == frozenset()  # all are on probation


def test_when_too_few_are_healthy_all_are_used() -> None:
    outliers = Outliers(RULES)
    fail(outliers, "d0", 0.0)
    assert outliers.ejected(pods(4), 4, 1.0) == {"d0"}
    assert outliers.ejected(pods(3), 4, 1.0) == {"d0"}  # one of four is not linked: half are healthy
    assert outliers.ejected(pods(2), 4, 1.0) == frozenset()


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("cause", [Cause.FAILURE_RATE, Cause.LATENCY])
def test_who_fails_more_often_or_is_slower_than_the_rest_is_found(n: int, cause: Cause) -> None:
    outliers = Outliers(RULES)
    found: dict[str, Cause] = {}
    for i in range(40):
        now_s = i * SWEEP_S / 30
        for pod in pods(n):
            result = Result(True, 0.02)
            if pod == "d1":
                result = Result(i % 2 == 0, 0.02) if cause is Cause.FAILURE_RATE else Result(True, 0.2)
            found |= outliers.end(pod, outliers.begin(pod, now_s), result, now_s)
    assert found == {"d1": cause}
    assert outliers.ejected(pods(n), n, now_s) == {"d1"}


def test_without_settings_pods_are_ejected_by_the_rules_that_a_router_has_without_settings() -> None:
    config = RouterConfig(model=("m",), cluster_secret="s" * 32)
    assert Rules() == Rules(
        failures=config.breaker_failures,
        open_s=config.eject_s,
        max_share=config.max_ejected_share,
        panic_share=config.panic_share,
    )


def test_who_went_last_stays_out_where_not_all_can() -> None:
    outliers = Outliers(RULES)
    for pod, now_s in (("d1", 0.0), ("d2", 2.0), ("d0", 1.0)):
        fail(outliers, pod, now_s)
    assert outliers.ejected(pods(4), 4, 3.0) == {"d2"}
    outliers.forget("d2")
    assert outliers.state("d2", 3.0) is State.CLOSED
    assert outliers.end("d2", 0, Result(False), 3.0) == {}
    assert outliers.ejected(pods(4), 4, 3.0) == {"d0"}


Many = tuple[str, str, float]  # a pod, its attempts in order ("." good, "x" failed), and their seconds per token


def note(outliers: Outliers, now_s: float, *many: Many) -> dict[str, Cause]:
    """Have attempts begin and end; return who was found."""
    found: dict[str, Cause] = {}
    for pod, attempts, token_s in many:
        for each in attempts:
            found |= outliers.end(pod, outliers.begin(pod, now_s), Result(each == ".", token_s), now_s)
    return found


def sweep(outliers: Outliers, now_s: float) -> dict[str, Cause]:
    """Have an attempt end that says nothing itself; return who was found."""
    return outliers.end("d0", outliers.begin("d0", now_s), Result(None), now_s)


ENOUGH = 2 * int(MIN_ATTEMPTS)  # attempts, to be as many as it takes after a half-life


@pytest.mark.parametrize(
    ("attempts", "is_found"),
    [
        ("x." * 6 + "." * (ENOUGH - 12), False),  # three in ten, which is not more than that share
        ("x." * 7 + "." * (ENOUGH - 14), True),
        ("x." * 9 + "x", False),  # one too few to be compared
        ("x." * 9 + "xx", True),
    ],
)
def test_a_pod_is_compared_from_enough_attempts_on_of_which_a_half_life_takes_half(
    attempts: str, is_found: bool
) -> None:
    outliers = Outliers(RULES)
    assert note(outliers, 0.0, ("d0", "." * 3 * ENOUGH, 0.02), ("d1", attempts, 0.02)) == {}
    assert sweep(outliers, HALF_LIFE_S) == ({"d1": Cause.FAILURE_RATE} if is_found else {})


def test_attempts_and_failures_fade_alike_however_often_it_is_looked() -> None:
    outliers = Outliers(RULES)
    note(outliers, 0.0, ("d0", "." * ENOUGH, 0.0), ("d1", "x...." * (ENOUGH // 5), 0.0))
    for now_s in range(1, int(HALF_LIFE_S) + 1):
        assert sweep(outliers, float(now_s)) == {}  # a fifth failed, as before
    other = Outliers(RULES)
    note(other, 0.0, ("d1", "x." * ENOUGH, 0.0))
    assert sweep(other, HALF_LIFE_S) == {}  # nobody to be compared with
    note(other, HALF_LIFE_S, ("d0", "." * ENOUGH, 0.0))
    assert sweep(other, 2 * HALF_LIFE_S) == {"d1": Cause.FAILURE_RATE}  # a quarter is left, which is enough


def test_what_was_just_tried_counts_in_full() -> None:
    outliers = Outliers(RULES)
    note(outliers, 0.0, ("d0", ".", 0.0), ("d1", ".", 0.0))
    just_s = SWEEP_S - 0.1
    note(outliers, just_s, ("d0", "." * int(MIN_ATTEMPTS), 0.0), ("d1", "x." * (int(MIN_ATTEMPTS) // 2), 0.0))
    assert sweep(outliers, SWEEP_S) == {"d1": Cause.FAILURE_RATE}


def test_it_is_looked_every_so_many_seconds() -> None:
    outliers, odd = Outliers(RULES), ("d1", "x." * ENOUGH, 0.0)
    assert note(outliers, 0.0, ("d0", "." * 3 * ENOUGH, 0.0), odd) == {}
    assert sweep(outliers, SWEEP_S - 0.001) == {}
    assert sweep(outliers, SWEEP_S) == {"d1": Cause.FAILURE_RATE}
    assert note(outliers, SWEEP_S, ("d2", "x." * ENOUGH, 0.0)) == {}
    assert sweep(outliers, 2 * SWEEP_S - 0.001) == {}
    assert sweep(outliers, 2 * SWEEP_S) == {"d2": Cause.FAILURE_RATE}


UNKNOWN = 0.0


@pytest.mark.parametrize(
    ("first_s", "then_s", "is_found"),
    [
        (0.25, UNKNOWN, False),
        (0.25 * SLOWNESS, UNKNOWN, False),  # no more than so many times as long
        (0.25 * SLOWNESS * 1.01, UNKNOWN, True),
        (UNKNOWN, UNKNOWN, False),
        (0.25, 0.25, False),
        (0.25 * SLOWNESS * 1.05, 0.25, False),  # one long one is outweighed
        (0.25, 0.25 * SLOWNESS * 1.2, True),
    ],
)
def test_a_pods_pace_is_its_first_measurement_and_moves_with_the_later_ones(
    first_s: float, then_s: float, is_found: bool
) -> None:
    outliers = Outliers(RULES)
    note(outliers, 0.0, ("d0", "." * ENOUGH, 0.25), ("d2", "." * ENOUGH, 0.25))
    note(outliers, 0.0, ("d1", ".", first_s), ("d1", "." * (2 * ENOUGH), then_s))
    assert sweep(outliers, SWEEP_S) == ({"d1": Cause.LATENCY} if is_found else {})


def test_a_pace_that_nobody_else_has_told_is_no_slow_one() -> None:
    outliers = Outliers(RULES)
    note(outliers, 0.0, ("d0", "." * ENOUGH, UNKNOWN), ("d1", "." * ENOUGH, 5.0), ("d2", "." * ENOUGH, UNKNOWN))
    assert sweep(outliers, SWEEP_S) == {}


def test_one_long_token_after_many_short_ones_and_results_without_a_pace_make_nobody_slow() -> None:
    outliers = Outliers(RULES)
    note(outliers, 0.0, ("d0", "." * ENOUGH, 0.02), ("d2", "." * ENOUGH, 0.02))
    note(outliers, 0.0, ("d1", "." * ENOUGH, 0.02), ("d1", ".", 0.02 * 2 * SLOWNESS))
    for _ in range(ENOUGH):
        outliers.end("d3", outliers.begin("d3", 0.0), Result(True), 0.0)
    assert sweep(outliers, SWEEP_S) == {}


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        (("d1", "x." * ENOUGH, 0.02), Cause.FAILURE_RATE),
        (("d1", "." * ENOUGH, 2.0), Cause.LATENCY),
        (("d1", "x.x.x.xxx", 0.02), Cause.FAILURES_IN_A_ROW),
        (("d1", "x." * ENOUGH + "xxx", 2.0), Cause.FAILURES_IN_A_ROW),
    ],
)
def test_who_comes_back_is_judged_by_what_it_does_then(odd: Many, cause: Cause) -> None:
    outliers = Outliers(RULES)
    well = ("d0", "." * 3 * ENOUGH, 0.02), ("d2", "." * 3 * ENOUGH, 0.02)
    found = note(outliers, 0.0, *well, odd)
    assert found | sweep(outliers, SWEEP_S) == {"d1": cause}
    back_s = SWEEP_S + RULES.open_s
    assert note(outliers, back_s, *well, ("d1", "." * (int(MIN_ATTEMPTS) + 4), 0.02)) == {}
    assert outliers.state("d1", back_s) is State.CLOSED
    assert sweep(outliers, back_s + SWEEP_S) == {}


def test_what_ends_while_a_pod_is_out_does_not_put_it_out_again() -> None:
    outliers = Outliers(RULES)
    note(outliers, 0.0, ("d0", "." * 2 * ENOUGH, 0.02))
    turns = [outliers.begin("d1", 0.0) for _ in range(2 * ENOUGH)]
    found = [outliers.end("d1", turn, Result(False), 0.0) for turn in turns]
    assert found == [{}, {}, {"d1": Cause.FAILURES_IN_A_ROW}] + [{}] * (2 * ENOUGH - 3)
    assert sweep(outliers, SWEEP_S) == {}
    assert outliers.state("d1", RULES.open_s) is State.HALF_OPEN


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 0.03), min_size=2, max_size=6))
def test_pods_that_do_not_differ_much_stay_whatever_all_of_them_do(paces: list[float]) -> None:
    outliers = Outliers(RULES)
    for i in range(int(MIN_ATTEMPTS) * 4):
        for pod, pace_s in enumerate(paces):
            is_good = i % 2 == 0  # each fails half of what it is given
            found = outliers.end(f"d{pod}", outliers.begin(f"d{pod}", i), Result(is_good, pace_s), float(i))
            assert found == {}


class OutlierMachine(RuleBasedStateMachine):
    """Pods come and go, attempts begin and end in any order, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.outliers = Outliers(RULES)
        self.now_s = 0.0
        self.pods = pods(5)
        self.running: list[tuple[str, int]] = []

    @rule(data=st.data(), is_forced=st.booleans())
    def begin(self, data: st.DataObject, is_forced: bool) -> None:
        out = self.outliers.ejected(self.pods, len(self.pods), self.now_s)
        pod = data.draw(st.sampled_from([pod for pod in self.pods if is_forced or pod not in out]))
        self.running.append((pod, self.outliers.begin(pod, self.now_s)))

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(), is_good=st.sampled_from([True, False, False, None]), token_s=st.sampled_from([0.0, 0.02, 0.5])
    )
    def end(self, data: st.DataObject, is_good: bool | None, token_s: float) -> None:
        pod, turn = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        for found in self.outliers.end(pod, turn, Result(is_good, token_s), self.now_s):
            assert self.outliers.state(found, self.now_s) is State.OPEN

    @rule(seconds=st.floats(0, 60))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(n=st.integers(1, 9))
    def scale(self, n: int) -> None:
        for gone in set(self.pods) - set(pods(n)):
            self.outliers.forget(gone)
            self.running = [each for each in self.running if each[0] != gone]
        self.pods = pods(n)

    @invariant()
    def ceiling_holds_and_panic_uses_all(self) -> None:
        n = len(self.pods)
        out = self.outliers.ejected(self.pods, n, self.now_s)
        assert len(out) <= RULES.max_ejected(n) < max(1, n)
        assert out <= set(self.pods)
        assert self.outliers.ejected(self.pods, 2 * n + 1, self.now_s) == frozenset()

    def teardown(self) -> None:
        # Everybody comes back: with time, and attempts that succeed, all are closed.
        for pod, turn in self.running:
            self.outliers.end(pod, turn, Result(None), self.now_s)
        self.now_s += MAX_OPEN_S
        for pod in self.pods:
            for _ in range(PROBES):
                self.outliers.end(pod, self.outliers.begin(pod, self.now_s), Result(True), self.now_s)
            assert self.outliers.state(pod, self.now_s) is State.CLOSED
        assert self.outliers.ejected(self.pods, len(self.pods), self.now_s) == frozenset()


TestOutliers = OutlierMachine.TestCase
TestOutliers.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
