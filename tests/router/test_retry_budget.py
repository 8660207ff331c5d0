"""The retry budget: a share of what is admitted, with a reserve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.router.retry_budget import RetryBudget


def spent(budget: RetryBudget, most: int = 99) -> int:
    """Spend all that is left; return how many attempts that were."""
    return next((count for count in range(most) if not budget.spend()), most)


def test_it_begins_full_is_earned_back_by_shares_and_holds_no_more_than_its_reserve() -> None:
    budget = RetryBudget(ratio=0.25, burst=3)
    assert spent(budget) == 3
    for earned, left in ((3, 0), (1, 1), (7, 1), (1, 1), (8, 2), (12, 3), (13, 3), (999, 3)):
        for _ in range(earned):
            budget.earn()
        assert spent(budget) == left
    assert spent(RetryBudget(ratio=0.5, burst=0)) == 0


@given(st.sampled_from([0.0, 0.125, 0.5, 1.0]), st.integers(0, 5), st.lists(st.booleans(), max_size=200))
def test_there_are_never_more_than_the_reserve_and_the_share_of_what_was_admitted(
    ratio: float, burst: int, admits: list[bool]
) -> None:
    budget, admitted, attempts = RetryBudget(ratio=ratio, burst=burst), 0, 0
    for is_admission in admits:
        if is_admission:
            budget.earn()
            admitted += 1
        else:
            attempts += budget.spend()
        assert attempts <= burst + ratio * admitted


@pytest.mark.parametrize("burst", [1, 2, 7])
def test_what_is_left_over_is_kept_while_there_is_room(burst: int) -> None:
    budget = RetryBudget(ratio=0.75, burst=burst)
    spent(budget)
    budget.earn()
    assert not budget.spend()
    budget.earn()  # 1.5, of which a burst of one keeps 1
    assert budget.spend()
    budget.earn()
    assert budget.spend() is (burst > 1)
