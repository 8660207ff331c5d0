"""The share of requests by how long they waited: its steps, its table, and two panels with the SLO in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from drawn_figures import drawn, labelled, legend, told, upright, xs, ys
from made_up_runs import SLO, experiment_of, failed, record, trial_of

from pagewire.slo.figures.experiment import Trial
from pagewire.slo.report.distributions import STEPS, cdf, distributions


def waiting(*ttfts_s: float, gaps_s: Sequence[float] = (0.01,), slo: str = SLO, name: str = "", lost: int = 0) -> Trial:
    """Return a run whose answers began after these times, and then had these gaps; `lost` requests failed beside."""
    records = [record(k, float(k), ttft_s, gaps_s) for k, ttft_s in enumerate(ttfts_s)]
    return dataclasses.replace(trial_of([*records, *(failed(99, 99.0) for _ in range(lost))], slo=slo), name=name)


@pytest.mark.parametrize("more", [-390, -7, -1, 0, 1, 150, 800])
@pytest.mark.parametrize("lost", [0, 1])
def test_every_point_is_the_share_that_waited_no_longer(more: int, lost: int) -> None:
    count = STEPS + more
    waits_ms = [2 * ((7919 * k) % count) for k in range(count)]
    curve = cdf(waiting(*(ms / 1e3 for ms in waits_ms), lost=lost), "ttft")
    assert curve[0] == (0.0, 0.0)
    assert len(curve) == 1 + min(count, STEPS)
    assert [curve[1][0], curve[-1][0]] == pytest.approx([min(waits_ms), max(waits_ms)])
    assert all(x < later for (x, _), (later, _) in pairwise(curve[1:]))
    for ms, share in curve[1:]:
        assert share == pytest.approx(sum(wait <= ms + 0.5 for wait in waits_ms) / (count + lost))


def test_answers_of_one_token_are_there_without_waiting_for_their_pace() -> None:
    records = [record(0, 0.0, 0.2, ()), record(1, 1.0, 0.2, (0.03,)), record(2, 2.0, 0.2, (0.01,)), failed(3, 3.0)]
    first, *others = cdf(trial_of(records), "tpot")
    assert first == (0.0, 0.25)
    assert others == [pytest.approx(point) for point in ((10, 0.5), (30, 0.75))]
    assert cdf(trial_of(records[:1]), "tpot") == []


def test_the_table_has_the_percentiles_and_what_was_met() -> None:
    made = waiting(0.1, 0.2, 0.3, 0.4, 0.9, slo="ttft=500ms", name="a")
    found = distributions(experiment_of(made), [made])
    assert found is not None
    assert [tuple(row) for row in found.rows] == [
        ("a", "TTFT", "300.0", "700.0", "800.0", "880.0", "500", "80.0 %", "37.6 %", "96.4 %"),
        ("a", "TPOT", "10.0", "10.0", "10.0", "10.0", "", "", "", ""),
    ]
    assert len(found.columns) == 10
    assert found.says == "TTFT was met by a 80.0 %."
    assert [*found.notes] == []


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        ("", "No objective was set for them."),
        ("e2e=1s", "No objective was set for them."),
        ("tpot=5ms", "TPOT was met by a 0.0 %."),
        (SLO, "TTFT was met by a 50.0 %; TPOT was met by a 100.0 %."),
    ],
)
def test_it_says_what_was_met_of_either(slo: str, expected: str) -> None:
    made = waiting(0.1, 0.7, slo=slo, name="a")
    found = distributions(experiment_of(made), [made])
    assert found is not None
    assert found.says == expected


def test_a_run_without_answers_has_an_empty_row_beside_others_and_none_are_no_picture() -> None:
    lost, made = trial_of([failed(0, 0.0)], slo=""), waiting(0.1, slo="", name="a")
    found = distributions(experiment_of(lost, made), [lost, made])
    assert found is not None
    assert [tuple(row)[1:] for row in found.rows[:2]] == [("TTFT", *[""] * 8), ("TPOT", *[""] * 8)]
    for axes in drawn(found):
        assert [*labelled(axes)] == ["a"]
    assert distributions(experiment_of(lost), [lost]) is None


def test_it_says_how_many_of_the_runs_are_drawn() -> None:
    trials = [waiting(0.1), waiting(0.2), waiting(0.3)]
    found = distributions(experiment_of(*trials), trials[:2])
    assert found is not None
    assert len(found.notes) == 1
    assert found.notes[0].startswith("2 of 3 runs are drawn")


def test_each_curve_is_drawn_in_percent_in_both_panels_and_holds_until_the_next_step() -> None:
    trials = [waiting(0.1, 0.2, name="a"), waiting(0.3, lost=1, name="b")]
    figure = distributions(experiment_of(*trials), trials)
    panels = drawn(figure)
    assert legend(figure) == ["a", "b"]
    for axes, measure in zip(panels, ("ttft", "tpot"), strict=True):
        for made in trials:
            curve, line = cdf(made, measure), labelled(axes)[made.name]
            assert xs(line) == [x for x, _ in curve]
            assert ys(line) == pytest.approx([100 * share for _, share in curve])
            assert line.get_drawstyle() == "steps-post"
        assert axes.get_ylim()[0] == 0
        assert 100 < axes.get_ylim()[1] < 105
        assert axes.get_xscale() == "linear"
    assert [axes.get_xlabel() for axes in panels] == ["TTFT, ms", "TPOT, ms"]
    assert [bool(axes.get_ylabel()) for axes in panels] == [True, False]
    left, right = (axes.get_subplotspec() for axes in panels)
    assert left is not None
    assert right is not None
    assert (left.rowspan, left.colspan.stop) == (right.rowspan, right.colspan.start), "side by side"
    assert panels[0].get_shared_y_axes().joined(*panels)


@pytest.mark.parametrize("count", [1, 3, 40, 2000])
def test_a_curve_has_a_few_markers_and_no_two_curves_where_the_same(count: int) -> None:
    trials = [waiting(*(0.1 + 0.001 * k for k in range(count)), name=f"{each}") for each in range(3)]
    axes, _ = drawn(distributions(experiment_of(*trials), trials))
    marked = []
    for line in labelled(axes).values():
        every: Any = line.get_markevery()
        begin, step = every
        marked.append({*range(len(xs(line)))[begin::step]})
    assert all(marked)
    assert all(len(each) <= 6 for each in marked)
    if count >= 40:
        assert sum(map(len, marked)) == len(set.union(*marked))
        assert all(len(each) >= 3 for each in marked)


@pytest.mark.parametrize(
    ("waits_ms", "expected"),
    [
        ([10, 10, 200], "log"),
        ([10, 10, 199], "linear"),
        ([0.5, 1, 1, 30], "log"),
        ([1, 1, 1, 1, 100, 100, 100, 1500], "linear"),  # the middle is 100
        ([1, 1, 1, 100, 100, 100, 100, 2500], "log"),
        ([0, 10, 10, 500], "linear"),  # what did not wait has no place on a logarithmic axis
        ([10], "linear"),
    ],
)
def test_a_long_tail_is_drawn_on_a_logarithmic_axis(waits_ms: list[float], expected: str) -> None:
    made = waiting(*(ms / 1e3 for ms in waits_ms))
    axes, other = drawn(distributions(experiment_of(made), [made]))
    assert (axes.get_xscale(), other.get_xscale()) == (expected, "linear")


def test_one_panel_may_be_without_a_curve() -> None:
    made = waiting(0.1, 0.2, gaps_s=())
    left, right = drawn(distributions(experiment_of(made), [made]))
    assert (len(labelled(left)), len(labelled(right))) == (1, 0)


def test_every_bound_is_one_dashed_line_with_its_text_above() -> None:
    slos = ("ttft=600ms,tpot=50ms", "ttft=300ms", "ttft=600ms", "e2e=5s")
    trials = [waiting(0.1, slo=slo, name=str(k)) for k, slo in enumerate(slos)]
    panels = drawn(distributions(experiment_of(*trials), trials))
    for axes, bounds_ms in zip(panels, ([300, 600], [50]), strict=True):
        lines = [*labelled(axes).values()]
        assert [x for x in upright(axes) if x > 0] == pytest.approx(bounds_ms)
        assert len(axes.lines) == len(lines) + len(bounds_ms)
        assert told([*axes.texts]) == [f"SLO {bound_ms} ms" for bound_ms in bounds_ms]
        for text, bound_ms in zip(axes.texts, bounds_ms, strict=True):
            assert text.get_transform().transform(text.get_position()) == pytest.approx(
                [axes.transData.transform((bound_ms, 0))[0], axes.transAxes.transform((0, 1))[1]]
            )
