"""The curve of what rows take: exact where it was measured, straight between, and anchored where a step stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine.row_cost import RowCost


def test_it_is_straight_between_measurements_and_behind_the_last() -> None:
    cost = RowCost()
    assert cost.more_s(4, 5) == 0.0
    cost.observe(4, 4, 2.0, 1)
    cost.observe(4, 8, 2.0, 2)
    cost.observe(4, 12, 6.0, 3)
    assert [cost.more_s(4, more) for more in (0, 1, 4, 6, 8, 10, 12, 14)] == [0.0, 0.5, 2.0, 2.0, 2.0, 4.0, 6.0, 8.0]
    assert cost.more_s(8, 4) == 0.0
    assert cost.more_s(8, 8) == 4.0
    assert cost.more_s(1, 2) == 0.0  # nothing is known of so few: they stand where the least does
    assert cost.more_s(1, 11) == 2.0


def test_a_number_of_rows_between_two_others_has_a_place_of_its_own() -> None:
    cost = RowCost()
    cost.observe(4, 12, 6.0, 1)
    cost.observe(4, 4, 2.0, 2)
    assert [cost.more_s(4, more) for more in (4, 8, 12)] == [2.0, 4.0, 6.0]


def test_a_step_that_stands_elsewhere_carries_the_curve_on() -> None:
    cost = RowCost()
    cost.observe(4, 4, 2.0, 1)
    cost.observe(8, 4, 1.0, 2)
    assert cost.more_s(4, 8) == 3.0


@pytest.mark.parametrize(("ago", "weight"), [(1, 0.2), (2, 0.36), (1000, 1.0)])
def test_what_was_measured_long_ago_counts_for_less(ago: int, weight: float) -> None:
    cost = RowCost()
    cost.observe(1, 1, 1.0, 5)
    cost.observe(1, 1, 2.0, 5 + ago)
    assert cost.more_s(1, 1) == pytest.approx(1.0 + weight)
    cost.observe(1, 1, 1.0 + weight + 5.0, 6 + ago)
    assert cost.more_s(1, 1) == pytest.approx(1.0 + weight + 1.0), "the one before it was a step ago"


def test_fewer_rows_take_no_more_than_was_last_seen_of_more() -> None:
    cost = RowCost()
    cost.observe(1, 3, 9.0, 1)  # somebody stopped the process
    cost.observe(1, 5, 2.0, 2)
    assert [cost.more_s(1, more) for more in (3, 4, 5)] == [2.0, 2.0, 2.0]


@given(
    seen=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.floats(0.0, 9.0)), max_size=30),
    asked=st.tuples(st.integers(1, 60), st.integers(0, 60)),
)
def test_it_is_never_below_nothing(seen: list[tuple[int, int, float]], asked: tuple[int, int]) -> None:
    cost = RowCost()
    for step, each in enumerate(seen):
        cost.observe(*each, step)
    assert cost.more_s(*asked) >= 0.0
    assert cost._rows == sorted(set(cost._rows))
