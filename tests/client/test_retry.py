"""How often and how soon a call is tried again, and what all calls of a client share, on values."""

from __future__ import annotations

import dataclasses
import math

import pytest
from source_tree import ROOT

from pagewire.client.retry import LONGEST_S, RetryBudget, RetryPolicy, Timeout
from pagewire.client.routers import REST_S
from pagewire.core.errors import InvalidRequest, Overloaded, PagewireError, Unavailable


def test_what_a_caller_does_not_say_is_as_the_documentation_says() -> None:
    told = " ".join((ROOT / "docs" / "sdk.md").read_text().split())
    timeout, policy, budget = Timeout(), RetryPolicy(), RetryBudget()
    for words in (
        f"`Timeout.total_s` ({timeout.total_s:g} s)",
        f"`Timeout.connect_s` ({timeout.connect_s:g} s)",
        f"`Timeout.silence_s` ({timeout.silence_s:g} s)",
        f"`RetryPolicy.max_attempts` ({policy.max_attempts}) times in all",
        f"rests for {REST_S:g} s",
    ):
        assert words in told
    assert "a bound that doubles" in told
    pauses_s = [policy.delay_s(Unavailable("x"), attempt, 1.0) for attempt in (1, 2)]
    assert pauses_s == [policy.first_backoff_s, 2 * policy.first_backoff_s]
    assert policy.resumes
    assert "ten to begin with, a tenth earned by each success" in told
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(5):
        budget.earn()
    assert budget.left == pytest.approx(0.5)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Timeout)])
def test_a_timeout_is_positive(name: str) -> None:
    assert getattr(Timeout(**{name: 0.5}), name) == 0.5
    for wrong in (0.0, -0.5):
        with pytest.raises(ValueError, match=f"timeouts must be positive, .* are .*{name}={wrong}"):
            Timeout(**{name: wrong})


def test_a_call_may_last_for_ever_and_nothing_else_may() -> None:
    assert Timeout(total_s=math.inf).total_s == math.inf
    for name in ("connect_s", "silence_s"):
        assert getattr(Timeout(**{name: LONGEST_S}), name) == LONGEST_S
        with pytest.raises(ValueError, match="but for total_s at most"):
            Timeout(**{name: math.inf})
    for name in ("connect_s", "silence_s", "total_s"):
        with pytest.raises(ValueError, match="positive"):
            Timeout(**{name: math.nan})


def test_a_call_has_an_attempt_at_least() -> None:
    assert RetryPolicy(max_attempts=1).delay_s(Unavailable("x"), 1, 0.5) is None
    with pytest.raises(ValueError, match="max_attempts must be at least 1, is 0"):
        RetryPolicy(max_attempts=0)


@pytest.mark.parametrize(
    ("error", "attempt", "draw", "delay_s"),
    [
        (Unavailable("x"), 1, 0.0, 0.0),
        (Unavailable("x"), 1, 0.5, 1.0),
        (Unavailable("x"), 2, 0.5, 3.0),
        (Unavailable("x"), 3, 0.5, 5.0),  # 2 * 3 * 3 is more than the most
        (Unavailable("x"), 4, 0.5, None),
        (Unavailable("x"), 5, 0.5, None),
        (Overloaded("x", retry_after_s=0.7), 1, 0.25, 0.7),
        (Overloaded("x", retry_after_s=0.7), 1, 0.5, 1.0),
        (Overloaded("x", retry_after_s=60.0), 3, 0.5, 60.0),
        (Overloaded("x", retry_after_s=60.0), 4, 0.5, None),
        (InvalidRequest("x"), 1, 0.5, None),
    ],
)
def test_pauses_grow_to_the_most_and_are_as_long_as_the_server_said(
    error: PagewireError, attempt: int, draw: float, delay_s: float | None
) -> None:
    policy = RetryPolicy(max_attempts=4, first_backoff_s=2.0, multiplier=3.0, max_backoff_s=10.0)
    assert policy.delay_s(error, attempt, draw) == delay_s


def test_a_budget_is_spent_by_ones_and_earned_back_by_parts_up_to_its_size() -> None:
    budget = RetryBudget(size=2.0, earned_per_success=0.25)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    for left in (0.25, 0.5, 0.75):
        budget.earn()
        assert (budget.left, budget.spend()) == (left, False)
    budget.earn()
    assert budget.spend() is True
    assert budget.left == 0.0
    for _ in range(9):
        budget.earn()
    assert budget.left == 2.0
