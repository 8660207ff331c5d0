"""The worst requests: furthest from what they should meet, drawn from when they were due to their last token."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
from drawn_figures import bars, bars_at, drawn, has_grid, labelled, legend, spans, told, upright, xs, ys
from made_up_runs import SLO, failed, record, trial_of
from matplotlib.colors import to_rgb, to_rgba

from pagewire.slo.figures.experiment import Trial
from pagewire.slo.figures.record import Record
from pagewire.slo.report.figure import Figure
from pagewire.slo.report.worst import MOST, moments_s, worst, worst_requests


def made(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def mixed(slo: str = SLO, *more: Record) -> Trial:
    """Return a run of three answers; of the first TPOT is the worse, of the others TTFT."""
    answers = [record(0, 0.0, 0.4, (0.1, 0.2)), record(1, 1.0, 1.0, (0.05,)), record(2, 2.5, 0.1, (), turn=3)]
    return trial_of([*answers, *more], slo=slo)


def ranked(made: Trial, most: int = MOST) -> list[tuple[int, str, float]]:
    return [(each.record.arrival, each.measure, round(each.factor, 4)) for each in worst(made, most)]


def test_a_request_counts_by_the_objective_that_it_missed_by_most() -> None:
    assert ranked(mixed()) == [(0, "tpot", 3.0), (1, "ttft", 2.0), (2, "ttft", 0.2)]
    assert ranked(mixed(), most=2) == [(0, "tpot", 3.0), (1, "ttft", 2.0)]
    assert ranked(mixed("tpot=50ms")) == [(0, "tpot", 3.0), (1, "tpot", 1.0)], "one token has no pace"


def test_what_has_no_whole_answer_is_not_among_them() -> None:
    cut = dataclasses.replace(record(7, 3.0, 9.0, (9.0,)), error="closed")
    assert ranked(mixed(SLO, cut, failed(8, 4.0))) == ranked(mixed())


def test_an_objective_of_no_time_has_no_factor() -> None:
    assert ranked(mixed("ttft=0ms,tpot=50ms")) == ranked(mixed("tpot=50ms"))


def test_without_objectives_they_are_held_against_the_median_of_end_to_end() -> None:
    assert ranked(mixed("")) == [(1, "e2e", 1.5), (0, "e2e", 1.0), (2, "e2e", 0.1429)]
    lost = trial_of([failed(0, 0.0)], slo="")
    assert worst(lost) == []
    assert worst_requests(lost, "lost") is None


def test_ten_are_told_unless_said() -> None:
    many = trial_of([record(k, float(k), 0.1 * k, ()) for k in range(12)])
    assert [each.record.arrival for each in worst(many)] == [*range(11, 1, -1)]


def test_the_moments_of_an_answer_are_when_its_parts_came() -> None:
    assert moments_s(record(0, 5.0, 0.4, (0.1, 0.3))) == pytest.approx([0.4, 0.5, 0.8])
    assert moments_s(record(0, 5.0, 0.4, ())) == [pytest.approx(0.4)]
    assert moments_s(failed(0, 1.0)) == []


def test_it_says_by_how_much_the_worst_and_the_mildest_missed_and_what_failed() -> None:
    found = made(worst_requests(mixed(SLO, failed(8, 4.0), failed(9, 4.0)), "it"))
    assert found.title.endswith("of it")
    assert found.slug == "worst"
    assert found.says == (
        "The worst has 3 times the objective of TPOT; the mildest of the 3 that are drawn has 0.2 times."
    )
    assert [*found.notes] == ["2 requests failed and are not drawn."]
    unbounded = made(worst_requests(mixed(""), "it", slug="worst-2"))
    assert unbounded.says.startswith("The worst has 1.5 times the median of E2E; ")
    assert unbounded.slug == "worst-2"
    assert [*unbounded.notes] == []


def test_the_table_has_their_times() -> None:
    late = record(4, 3.25, 2.0, (0.5, 0.25), sent_s=3.5)
    found = made(worst_requests(mixed(SLO, late), "it"))
    assert [tuple(row) for row in found.rows] == [
        ("4", "3.25", "250.0", "2000.0", "375.0", "500.0", "2750.0", "7.50 (TPOT)"),
        ("0", "0.00", "0.0", "400.0", "150.0", "200.0", "700.0", "3.00 (TPOT)"),
        ("1", "1.00", "0.0", "1000.0", "50.0", "50.0", "1050.0", "2.00 (TTFT)"),
        ("2.3", "2.50", "0.0", "100.0", "", "", "100.0", "0.20 (TTFT)"),
    ]
    assert len(found.columns) == 8


def test_each_request_takes_as_much_room_as_any() -> None:
    heights = [
        made(worst_requests(trial_of([record(k, float(k), 0.1, ()) for k in range(n)]), "it")).height_in
        for n in (1, 2, 3, 10)
    ]
    assert heights[1] - heights[0] > 0
    assert [b - a for a, b in pairwise(heights)] == pytest.approx([(heights[1] - heights[0]) * n for n in (1, 1, 7)])
    assert heights[-1] < 6


def test_delay_waiting_and_answer_are_drawn_one_behind_the_other() -> None:
    late = record(4, 3.0, 4.0, (0.5, 0.25, 1.0), sent_s=5.0)
    early = record(5, 4.0, 3.0, (0.5,), sent_s=3.75)
    figure = worst_requests(mixed("ttft=500ms", late, early), "it")
    (axes,) = drawn(figure)
    assert spans(axes, 0) == [pytest.approx(span) for span in ((0, 2), (2, 4), (4, 5.75))]
    assert spans(axes, 1) == [pytest.approx(span) for span in ((0, 0), (0, 3), (3, 3.5))]
    assert told(axes.get_yticklabels()) == ["4: 8", "5: 6", "1: 2", "0: 0.8", "2.3: 0.2"]
    assert [*axes.get_yticks()] == [0, 1, 2, 3, 4]
    assert len(bars(axes)) == 15


def test_every_kind_of_bar_is_once_in_the_legend_and_has_a_look_of_its_own() -> None:
    figure = worst_requests(mixed("ttft=500ms"), "it")
    (axes,) = drawn(figure)
    assert sorted(legend(figure)) == ["SLO of TTFT, 500 ms", "answer", "client's delay", "until the first token"]
    kinds = dict(zip(("delay", "waiting", "answer"), bars_at(axes, 0), strict=True))
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    for label, kind in (("client's delay", "delay"), ("until the first token", "waiting"), ("answer", "answer")):
        assert kinds[kind] in named[label].patches
    assert kinds["delay"].get_hatch()
    assert to_rgba(kinds["delay"].get_facecolor())[3] == 0, "what the client did is not filled"
    assert kinds["waiting"].get_facecolor()[:3] != kinds["answer"].get_facecolor()[:3]
    assert [kinds[kind].get_linewidth() for kind in ("waiting", "answer")] == [0, 0], "no edge adds to the time"
    assert all(bar.get_height() < 1 for bar in bars(axes)), "no request reaches into another"


def test_every_part_of_an_answer_is_a_tick_across_its_bar() -> None:
    (axes,) = drawn(worst_requests(mixed(""), "it"))
    for place, each in enumerate(worst(mixed(""))):
        ticks, moments = axes.lines[place], moments_s(each.record)
        assert xs(ticks) == pytest.approx([x for moment in moments for x in (moment, moment, math.nan)], nan_ok=True)
        low, high, gap = ys(ticks)[:3]
        assert ys(ticks) == pytest.approx([low, high, math.nan] * len(moments), nan_ok=True)
        assert math.isnan(gap)
        *_, answer = bars_at(axes, place)
        assert low + high == pytest.approx(2 * place)
        assert place - 0.5 < low < answer.get_y() < place < high < place + 0.5
        assert to_rgb(ticks.get_color()) == answer.get_facecolor()[:3]


@pytest.mark.parametrize(
    ("slo", "expected"), [("ttft=500ms,tpot=50ms", {"SLO of TTFT, 500 ms": 0.5}), ("tpot=50ms", {}), ("", {})]
)
def test_the_objective_of_ttft_stands_upright(slo: str, expected: dict[str, float]) -> None:
    (axes,) = drawn(worst_requests(mixed(slo), "it"))
    assert upright(axes) == pytest.approx([*expected.values()])
    assert {name: xs(line)[0] for name, line in labelled(axes).items()} == pytest.approx(expected)


def test_the_axes_begin_when_a_request_was_due_and_the_worst_stands_on_top() -> None:
    (axes,) = drawn(worst_requests(mixed(), "it"))
    assert axes.get_xlim()[0] == 0
    assert axes.yaxis_inverted()
    assert has_grid(axes) == (True, False)
    assert "s" in axes.get_xlabel()
    assert "factor" in axes.get_ylabel()
