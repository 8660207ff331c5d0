"""Breakers and ejection: who fails is kept out and comes back, never too many, and none when all are in trouble."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagewire.router.breaker import MAX_OPEN_S, PROBES, Breaker, State
from pagewire.router.outliers import MIN_ATTEMPTS, SWEEP_S, Cause, Outliers, Result, Rules

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


def fail(outliers: Outliers, pod: str, now_s: float, times: int = 3) -> dict[str, Cause]:
    found: dict[str, Cause] = {}
    for _ in range(times):
        found |= outliers.end(pod, outliers.begin(pod, now_s), Result(False), now_s)
    return found


def pods(n: int) -> list[str]:
    return [f"d{i}" for i in range(n)]


@pytest.mark.parametrize(("n", "most"), [(1, 0), (2, 1), (3, 1), (4, 1), (7, 2), (10, 3), (100, 30)])
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
