"""Of many runs those are drawn that can be told apart and held against each other."""

from __future__ import annotations

import pytest
from made_up_runs import attaining, experiment_of

from pagewire.slo.figures.experiment import Trial
from pagewire.slo.report.shown import looked_into, shown


def at_rates(*rates: float, chunk: int = 0) -> list[Trial]:
    return [attaining(rate, 9, chunk=chunk) for rate in rates]


def rates_of(trials: list[Trial]) -> list[tuple[float, object]]:
    return [(each.rate_per_s, each.labels["chunk"]) for each in trials]


@pytest.mark.parametrize("count", [1, 2, 6])
def test_all_are_shown_where_they_fit(count: int) -> None:
    trials = [*at_rates(3, 1), *at_rates(2, 5, 4, 6, chunk=1)][:count]
    assert shown(experiment_of(*trials)) == trials


@pytest.mark.parametrize(
    ("count", "expected"),
    [(7, [1, 2, 3, 4, 5, 7]), (11, [1, 3, 5, 7, 9, 11]), (12, [1, 3, 5, 7, 9, 12]), (13, [1, 3, 5, 8, 10, 13])],
)
def test_of_one_series_those_at_rates_evenly_apart(count: int, expected: list[float]) -> None:
    found = shown(experiment_of(*at_rates(*range(1, count + 1))))
    assert [each.rate_per_s for each in found] == expected


def test_of_two_series_one_each_at_the_highest_rate_that_both_were_tried_at() -> None:
    found = shown(experiment_of(*at_rates(1, 2, 3, 8), *at_rates(1, 2, 4, 9, chunk=1)))
    assert rates_of(found) == [(2, 0), (2, 1)]


def test_a_rate_that_more_share_goes_before_a_higher_one() -> None:
    found = shown(experiment_of(*at_rates(1, 2, 4), *at_rates(1, 2, chunk=1), *at_rates(2, 4, chunk=2)))
    assert rates_of(found) == [(2, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize(("count", "expected"), [(6, [0, 1, 2, 3, 4, 5]), (8, [0, 1, 2, 4, 5, 7])])
def test_of_many_series_those_evenly_apart(count: int, expected: list[int]) -> None:
    trials = [each for chunk in range(count) for each in at_rates(1, 2, chunk=chunk)]
    assert rates_of(shown(experiment_of(*trials))) == [(2, chunk) for chunk in expected]


@pytest.mark.parametrize(("goods", "expected"), [([5], [5]), ([5, 2], [5, 2]), ([5, 2, 7], [2]), ([5, 7, 9, 4], [4])])
def test_one_or_two_runs_are_looked_into_and_of_more_the_worst(goods: list[int], expected: list[int]) -> None:
    found = looked_into(experiment_of(*(attaining(rate, good) for rate, good in enumerate(goods, 1))))
    assert [each.summary.all_attained.good for each in found] == expected
