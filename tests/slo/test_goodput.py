"""Goodput is where a curve falls below its target; beyond what was tried it is a bound."""

from __future__ import annotations

import made_up_runs
import pytest

from pagewire.slo.figures.statistics import wilson
from pagewire.slo.figures.summary import Attainment
from pagewire.slo.sweeps.goodput import TARGETS, RatePoint, goodput, rate_points


def points(*shares: tuple[float, int], total: int = 1000) -> list[RatePoint]:
    return [RatePoint(rate, Attainment(good=good, total=total)) for rate, good in shares]


def test_a_crossing_lies_in_proportion_between_two_rates() -> None:
    told = goodput(points((1, 1000), (2, 960), (4, 860), (8, 100)), 0.9)
    assert told.rate_per_s == pytest.approx(2 + 2 * (0.96 - 0.9) / (0.96 - 0.86))
    assert told.is_crossing


def test_its_ends_are_where_wilsons_ends_cross() -> None:
    told = goodput(points((2, 960), (4, 860)), 0.9)
    for end, seen in (("low", told.low_per_s), ("high", told.high_per_s)):
        above, below = (getattr(wilson(good, 1000), end) for good in (960, 860))
        assert seen == pytest.approx(2 + 2 * (above - 0.9) / (above - below))
    assert told.low_per_s is not None
    assert told.rate_per_s is not None
    assert told.high_per_s is not None
    assert told.low_per_s < told.rate_per_s < told.high_per_s


def test_the_first_fall_counts_though_the_curve_may_rise_again() -> None:
    told = goodput(points((1, 1000), (2, 800), (3, 1000), (4, 0)), 0.9)
    assert told.rate_per_s == pytest.approx(1.5)


def test_what_never_fell_is_a_bound_from_below() -> None:
    told = goodput(points((1, 1000), (4, 990)), 0.9)
    assert (told.rate_per_s, told.least_per_s, str(told)) == (None, 4, "at least 4/s")


def test_what_was_too_low_at_once_is_a_bound_from_above() -> None:
    told = goodput(points((1, 100), (4, 50)), 0.9)
    assert (told.rate_per_s, told.least_per_s, str(told)) == (0, 0, "below 1/s")


def test_a_bound_that_is_not_sure_says_so() -> None:
    told = goodput(points((1, 10), (4, 10), total=10), 0.9)
    assert str(told) == "at least 4/s (below 1 to at least 4)"  # of ten requests little is known


def test_a_share_that_is_just_the_target_meets_it() -> None:
    assert goodput(points((1, 900)), 0.9).rate_per_s is None


def test_the_lowest_and_the_highest_that_was_tried_are_told() -> None:
    told = goodput(points((1, 1000), (2, 960), (4, 860), (8, 100)), 0.9)
    assert (told.target, told.lowest_per_s, told.highest_per_s) == (0.9, 1, 8)
    assert not goodput(points((1, 1000)), 0.9).is_crossing
    assert not goodput(points((1, 0)), 0.9).is_crossing


def test_a_crossing_is_told_with_its_interval_and_a_sure_one_without() -> None:
    assert str(goodput(points((2, 960), (4, 860)), 0.9)) == "3.2/s (2.84 to 3.56)"
    assert str(goodput(points((2, 1_000_000), (4, 0), total=1_000_000), 0.5)) == "3/s"


def test_shares_of_nine_nineteen_twentieths_and_ninety_nine_hundredths_are_looked_for() -> None:
    assert TARGETS == (0.9, 0.95, 0.99)


def test_trials_of_one_rate_are_pooled() -> None:
    trials = [made_up_runs.made_up_trial(rate, 5.0, seed=seed) for rate, seed in ((4, 1), (2, 2), (2, 3))]
    found = rate_points(trials)
    assert [point.rate_per_s for point in found] == [2, 4]
    assert found[0].attained.total == 400
    assert found[0].attained.good == sum(trial.summary.all_attained.good for trial in trials[1:])
