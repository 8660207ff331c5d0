"""What is drawn is what the numbers say: pictures are drawn by matplotlib and read back. Not how they look."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from drawn_figures import bars, drawn, level, spans, upright, xs, ys
from made_up_runs import made_up_trial, sweep

from pagewire.slo.figures.experiment import Experiment
from pagewire.slo.report.attainment import attainment, curves
from pagewire.slo.report.breakdown import STACK, breakdown, stacks
from pagewire.slo.report.distributions import MEASURES, cdf, distributions
from pagewire.slo.report.ratios import ratios
from pagewire.slo.report.worst import moments_s, worst, worst_requests
from pagewire.slo.sweeps.goodput import TARGETS, goodput

MADE = made_up_trial(2, 5.0)  # with objectives of 500 ms and 50 ms
ONE = Experiment(title="One", trials=(MADE,))


def test_attainment_is_drawn_in_percent_with_its_targets_and_a_cross_at_each_goodput() -> None:
    swept = sweep((1, 4, 8))
    (axes,) = drawn(attainment(swept))
    lines = {line.get_label(): line for line in axes.lines}
    crosses = []
    for series, points in curves(swept):
        assert xs(lines[series.name]) == [point.rate_per_s for point in points]
        assert ys(lines[series.name]) == pytest.approx([100 * point.attained.share for point in points])
        found = [(target, goodput(points, target)) for target in TARGETS]
        crosses += [(each.rate_per_s, 100 * target) for target, each in found if each.is_crossing]
    assert level(axes) == pytest.approx([100 * target for target in TARGETS])
    marks = [(xs(line)[0], ys(line)[0]) for line in axes.lines if line.get_marker() == "x"]
    assert crosses
    assert np.array(sorted(marks)) == pytest.approx(np.array(sorted(crosses)))


def test_distributions_are_drawn_in_percent_with_the_objective_where_it_is() -> None:
    panels = drawn(distributions(ONE, [MADE]))
    for axes, measure, bound_ms in zip(panels, MEASURES, (500.0, 50.0), strict=True):
        (curve,) = [line for line in axes.lines if line.get_label() == ONE.name_of(MADE)]
        told = cdf(MADE, measure)
        assert xs(curve) == [value for value, _ in told]
        assert ys(curve) == pytest.approx([100 * share for _, share in told])
        assert upright(axes) == pytest.approx([bound_ms])
        assert [text.get_text() for text in axes.texts] == [f"SLO {bound_ms:g} ms"]


def test_each_ratio_of_pods_is_a_square_around_what_is_said_of_it() -> None:
    (axes,) = drawn(ratios(sweep((1, 4, 8))), has_legend=False)
    squares = [(bar.get_x() + 0.5 * bar.get_width(), bar.get_y() + 0.5 * bar.get_height()) for bar in bars(axes)]
    assert sorted(squares) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for text in axes.texts:
        x, y = text.get_position()
        assert any(abs(x - at) < 0.5 and abs(y - row) < 0.5 for at, row in squares)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1D", "2D"]


def test_parts_are_drawn_end_to_end() -> None:
    (axes,) = drawn(breakdown(ONE, [MADE]))
    for place, each in enumerate(stacks(ONE.name_of(MADE), MADE)):
        row = spans(axes, place)
        assert [left for left, _ in row] == pytest.approx([0.0, *[right for _, right in row[:-1]]])
        before = [part for part in STACK if each.parts_ms[part] > 0]
        assert row[len(before) - 1][1] == pytest.approx(each.ttft_ms)


@pytest.mark.parametrize(("slo", "expected"), [("ttft=500ms,tpot=50ms", [0.5]), ("tpot=50ms", [])])
def test_the_worst_requests_are_drawn_from_their_due_time_to_their_last_token(slo: str, expected: list[float]) -> None:
    made = made_up_trial(2, 5.0, slo=slo)
    (axes,) = drawn(worst_requests(made, "it"))
    for place, each in enumerate(worst(made)):
        ends: Callable[[int], float] = moments_s(each.record).__getitem__
        late_s = each.record.late_s
        assert spans(axes, place) == [
            pytest.approx(span) for span in ((0, late_s), (late_s, ends(0)), (ends(0), ends(-1)))
        ]
    assert upright(axes) == pytest.approx(expected)
