"""Differences and their intervals against published ones, scipy's, and how often they hold the truth."""

from __future__ import annotations

import dataclasses

import made_up_runs
import numpy as np
import pytest
from scipy import stats

from pagewire.slo.figures import comparison
from pagewire.slo.figures.comparison import Difference, compare, interval, newcombe, resampled
from pagewire.slo.figures.experiment import trial as trial_of
from pagewire.slo.figures.summary import Attainment


def test_newcombes_interval_is_the_published_one() -> None:
    # Newcombe 1998, table II, example (a), method 10: 56 of 70 less 48 of 80.
    low, high = newcombe(Attainment(good=48, total=80), Attainment(good=56, total=70))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


@pytest.mark.parametrize(("one", "other"), [((0, 10), (0, 20)), ((10, 10), (20, 20)), ((10, 10), (0, 20))])
def test_newcombes_interval_holds_its_ends(one: tuple[int, int], other: tuple[int, int]) -> None:
    first, second = (Attainment(good=good, total=total) for good, total in (one, other))
    low, high = newcombe(first, second)
    assert -1 <= low <= second.share - first.share <= high <= 1
    assert low < high  # unlike a bootstrap's: twenty of twenty is no proof of always


@pytest.mark.parametrize("percent", [50.0, 95.0])
def test_a_bootstrap_of_single_requests_is_scipys(percent: float) -> None:
    draw = np.random.default_rng(5)
    first, second = draw.exponential(100.0, 300), draw.exponential(130.0, 400)

    def difference(one: np.ndarray, other: np.ndarray, axis: int) -> np.ndarray:
        found: np.ndarray = np.percentile(other, percent, axis=axis) - np.percentile(one, percent, axis=axis)
        return found

    theirs = stats.bootstrap(
        (first, second), difference, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    drawn = [resampled(each, (percent,), draw, stretch=1)[:, 0] for each in (first, second)]
    low, high = interval(drawn[1] - drawn[0])
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.1 * width)
    assert high == pytest.approx(theirs.high, abs=0.1 * width)


def test_stretches_of_neighbours_know_that_neighbours_are_alike() -> None:
    draw = np.random.default_rng(2)
    queue = np.empty(2000)
    queue[0] = 0.0
    for place in range(1, len(queue)):
        queue[place] = 0.9 * queue[place - 1] + draw.normal()
    spread = {stretch: resampled(queue, (50.0,), draw, stretch=stretch).std() for stretch in (1, 40)}
    assert spread[40] > 2 * spread[1]


def test_the_interval_of_a_median_holds_the_truth_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "RESAMPLES", 200)
    draw, held = np.random.default_rng(11), 0
    for _ in range(120):
        pair = draw.exponential(1.0, 200), draw.exponential(2.0, 200)
        drawn = [resampled(each, (50.0,), draw)[:, 0] for each in pair]
        low, high = interval(drawn[1] - drawn[0])
        held += low <= np.log(2) <= high
    assert 0.87 <= held / 120 <= 0.99


def test_a_run_does_not_differ_from_itself() -> None:
    trial = made_up_runs.made_up_trial(2, 5.0)
    found = compare(trial, trial)
    assert {each.what for each in found} >= {"attainment", "TTFT p50", "TTFT p95", "TPOT p50", "end to end p95"}
    assert {each.value for each in found} == {0}
    assert {each.says for each in found} == {"no difference can be told"}


def test_a_slower_server_is_told_apart() -> None:
    quick, slow = made_up_runs.made_up_trial(2, 20.0, seed=1), made_up_runs.made_up_trial(2, 3.0, seed=2)
    by_name = {each.what: each for each in compare(quick, slow)}
    assert by_name["attainment"].says == by_name["TTFT p50"].says == "the second is worse"
    assert {each.what: each.says for each in compare(slow, quick)}["TTFT p50"] == "the second is better"
    assert by_name["TTFT p50"].second == pytest.approx(slow.summary.measures["ttft"].p50)  # type: ignore[union-attr]


def test_one_seed_is_one_answer() -> None:
    pair = made_up_runs.made_up_trial(2, 5.0, seed=1), made_up_runs.made_up_trial(2, 6.0, seed=2)
    assert compare(*pair, seed=3) == compare(*pair, seed=3)
    assert compare(*pair, seed=3) != compare(*pair, seed=4)


def test_of_few_requests_nothing_is_concluded() -> None:
    pair = [made_up_runs.made_up_trial(2, capacity, count=40) for capacity in (3.0, 20.0)]
    by_name = {each.what: each for each in compare(*pair)}
    assert by_name["TTFT p95"].says == "too few requests to tell"  # two lie beyond it
    assert by_name["TTFT p50"].low is not None


def test_what_only_failed_has_no_latencies_to_compare() -> None:
    trial = made_up_runs.made_up_trial(2, 5.0)
    lost = trial_of(
        [dataclasses.replace(each, error="http_500") for each in trial.records], trial.summary.window,
        trial.summary.objectives, labels={},
    )  # fmt: skip
    (only,) = compare(trial, lost)
    assert (only.what, only.second, only.says) == ("attainment", 0, "the second is worse")


def test_more_is_better_of_attainment_alone() -> None:
    told = {"unit": "points", "first": 90.0, "second": 95.0, "low": 1.0, "high": 9.0}
    assert Difference(what="a", **told, more_is_better=True).says == "the second is better"  # type: ignore[arg-type]
    assert Difference(what="a", **told).says == "the second is worse"  # type: ignore[arg-type]
