"""Intervals and percentiles against scipy's."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from pagewire.slo.figures.statistics import distribution_ms, percentile, wilson


@pytest.mark.parametrize(
    ("good", "total"), [(0, 1), (1, 1), (0, 20), (20, 20), (1, 3), (17, 40), (950, 1000), (999, 1000)]
)
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_is_scipys(good: int, total: int, confidence: float) -> None:
    theirs = stats.binomtest(good, total).proportion_ci(confidence_level=confidence, method="wilson")
    ours = wilson(good, total, confidence)
    assert ours.low == pytest.approx(theirs.low, abs=1e-12)
    assert ours.high == pytest.approx(theirs.high, abs=1e-12)


@pytest.mark.parametrize(("good", "total"), [(0, 0), (-1, 3), (4, 3)])
def test_what_is_no_share_has_no_interval(good: int, total: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        wilson(good, total)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_percentiles_are_numpys_and_scipys(count: int) -> None:
    draw = random.Random(count)
    values = sorted(draw.expovariate(3.0) for _ in range(count))
    for percent in (0, 1, 25, 50, 90, 95, 99, 99.9, 100):
        ours = percentile(values, percent)
        assert ours == pytest.approx(float(np.percentile(values, percent)), rel=1e-12)
        assert ours == pytest.approx(float(stats.scoreatpercentile(values, percent)), rel=1e-12)


def test_a_distribution_is_in_milliseconds() -> None:
    told = distribution_ms([0.2, 0.1, 0.4, 0.3])
    assert told is not None
    assert (told.count, told.max) == (4, 400)
    assert (told.p50, told.p90, told.p95, told.p99) == pytest.approx((250, 370, 385, 397))
    assert told.mean == pytest.approx(250)
    assert distribution_ms([]) is None


def test_each_figure_is_that_percentile_of_many_values() -> None:
    told = distribution_ms([value / 1e3 for value in range(1000, -1, -1)])
    assert told is not None
    assert (told.p50, told.p90, told.p95, told.p99, told.max) == pytest.approx((500, 900, 950, 990, 1000))
    assert told.count == 1001
    assert told.mean == pytest.approx(500)


@pytest.mark.parametrize(
    ("values", "percent"), [([], 50.0), ([1.0], -0.5), ([1.0], 100.5), ([1.0], -1.0), ([1.0], 101)]
)
def test_what_is_no_percentile_is_an_error(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, percent)


def test_an_interval_is_sure_to_95_percent_unless_told() -> None:
    assert wilson(17, 40) == wilson(17, 40, 0.95)


def test_of_none_and_of_all_an_end_is_exact() -> None:
    assert {wilson(0, total).low for total in range(1, 200)} == {0.0}
    assert {wilson(total, total).high for total in range(1, 200)} == {1.0}
