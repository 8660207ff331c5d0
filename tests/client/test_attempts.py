"""The tries of one call, on values: where, for how long, after what pause, and which error ends it."""

from __future__ import annotations

import pytest

from pagewire.client.attempts import Attempts
from pagewire.client.retry import RetryBudget, RetryPolicy
from pagewire.client.routers import Routers
from pagewire.core.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    Overloaded,
    PagewireError,
    RouterLost,
    Unavailable,
)

POLICY = RetryPolicy(max_attempts=3, first_backoff_s=1.0, multiplier=2.0, max_backoff_s=8.0)


def call(
    *, timeout_s: float | None = None, budget: RetryBudget | None = None, routers: Routers | None = None
) -> Attempts:
    """Return a call that begins at 100 s."""
    return Attempts(
        timeout_s=timeout_s, policy=POLICY, budget=budget or RetryBudget(), routers=routers or Routers(1), now_s=100.0
    )


def test_a_call_without_a_timeout_has_all_the_time() -> None:
    attempts = call()
    assert attempts.count == 0
    assert [attempts.begin(now_s) for now_s in (100.0, 1e9)] == [(0, None), (0, None)]
    assert attempts.count == 2
    assert attempts.failed(Unavailable("x"), now_s=1e9, draw=0.5) == 1.0


def test_no_try_begins_when_the_time_is_over() -> None:
    attempts = call(timeout_s=4.0)
    assert [attempts.begin(now_s) for now_s in (100.0, 103.5)] == [(0, 4.0), (0, 0.5)]
    for now_s in (104.0, 105.0):
        with pytest.raises(DeadlineExceeded, match="no answer within 4 s"):
            attempts.begin(now_s)
    assert attempts.count == 2


@pytest.mark.parametrize(("now_s", "delay_s"), [(102.0, 0.5), (103.4, 0.5), (103.5, None), (103.9, None)])
def test_a_pause_ends_before_the_time_does(now_s: float, delay_s: float | None) -> None:
    budget = RetryBudget(size=3.0)
    attempts = call(timeout_s=4.0, budget=budget)
    attempts.begin(100.0)
    if delay_s is None:
        with pytest.raises(Unavailable):
            attempts.failed(Unavailable("x"), now_s=now_s, draw=0.5)
        assert budget.left == 3.0, "what is not tried costs nothing"
    else:
        assert attempts.failed(Unavailable("x"), now_s=now_s, draw=0.5) == delay_s
        assert budget.left == 2.0


@pytest.mark.parametrize("error", [RouterLost("x"), Draining("x", retry_after_s=2.0)])
def test_what_is_the_router_s_alone_is_tried_at_once_at_each_other_and_then_after_a_pause(error: PagewireError) -> None:
    routers = Routers(2)
    attempts = call(routers=routers)
    assert attempts.begin(100.0)[0] == 0
    assert attempts.failed(error, now_s=100.0, draw=0.5) == 0.0
    assert attempts.begin(100.0)[0] == 1
    assert attempts.failed(error, now_s=101.0, draw=0.5) == max(1.0, error.retry_after_s)
    assert attempts.begin(101.0)[0] == 0, "of those that were left it is the one that was lost first"
    with pytest.raises(type(error)):
        attempts.failed(error, now_s=101.0, draw=0.5)


@pytest.mark.parametrize("error", [Overloaded("x"), Unavailable("x"), InvalidRequest("x")])
def test_what_another_router_would_say_too_does_not_leave_this_one(error: PagewireError) -> None:
    attempts = call(routers=Routers(2))
    attempts.begin(100.0)
    assert attempts.leaves(error, now_s=100.0) is False
    assert attempts.begin(100.0)[0] == 0


def test_a_lost_router_ends_no_call_while_another_was_not_tried_however_many_are_lost() -> None:
    attempts = call(routers=Routers(9))
    for place in range(8):
        assert attempts.begin(100.0)[0] == place
        assert attempts.failed(RouterLost("x"), now_s=100.0, draw=0.5) == 0.0
    assert attempts.begin(100.0)[0] == 8
    with pytest.raises(RouterLost):
        attempts.failed(RouterLost("x"), now_s=100.0, draw=0.5)


def test_who_wants_one_try_gets_one_though_a_router_is_left() -> None:
    attempts = Attempts(
        timeout_s=None, policy=RetryPolicy(max_attempts=1), budget=RetryBudget(), routers=Routers(2), now_s=100.0
    )
    attempts.begin(100.0)
    with pytest.raises(RouterLost):
        attempts.failed(RouterLost("x"), now_s=100.0, draw=0.5)


def test_a_router_that_a_call_left_is_none_to_go_to_at_once_though_it_has_rested() -> None:
    attempts = call(routers=Routers(2, rest_s=5.0))
    attempts.begin(100.0)
    assert attempts.failed(RouterLost("x"), now_s=100.0, draw=0.5) == 0.0
    attempts.begin(100.0)
    assert attempts.failed(RouterLost("x"), now_s=106.0, draw=0.5) == 1.0


def test_without_a_budget_there_is_no_other_try() -> None:
    attempts = call(budget=RetryBudget(size=1.0), routers=Routers(3))
    attempts.begin(100.0)
    assert attempts.failed(RouterLost("x"), now_s=100.0, draw=0.5) == 0.0
    attempts.begin(100.0)
    with pytest.raises(RouterLost):
        attempts.failed(RouterLost("x"), now_s=100.0, draw=0.5)


def test_an_answer_earns_a_part_of_a_retry_and_its_router_is_no_lost_one() -> None:
    budget, routers = RetryBudget(size=2.0, earned_per_success=0.5), Routers(2)
    attempts = call(budget=budget, routers=routers)
    attempts.begin(100.0)
    attempts.failed(RouterLost("x"), now_s=100.0, draw=0.5)
    attempts.begin(100.0)
    attempts.failed(RouterLost("x"), now_s=100.0, draw=0.5)
    attempts.begin(100.0)
    assert not routers.has_other(100.0, ())
    attempts.succeeded()
    assert budget.left == 0.5
    assert routers.has_other(100.0, ())


def test_each_router_is_tried_once_though_the_policy_has_fewer_attempts() -> None:
    attempts = Attempts(
        timeout_s=None, policy=RetryPolicy(max_attempts=2), budget=RetryBudget(), routers=Routers(3), now_s=100.0
    )
    places = []
    for _ in range(2):
        places.append(attempts.begin(100.0)[0])
        assert attempts.failed(RouterLost("gone"), now_s=100.0, draw=0.5) == 0.0
    places.append(attempts.begin(100.0)[0])
    with pytest.raises(RouterLost):
        attempts.failed(RouterLost("gone"), now_s=100.0, draw=0.5)
    assert places == [0, 1, 2]
