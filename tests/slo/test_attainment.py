"""Attainment by rate: every series of two rates or more, with how sure it is, and a cross where it falls below."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_figures import drawn, labelled, legend, level, told, xs, ys
from made_up_runs import attaining, experiment_of
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb

from pagewire.slo.figures.statistics import wilson
from pagewire.slo.report.attainment import attainment, curves

# Good ones of ten at each rate.
FALLS, HOLDS, NEVER = {1: 10, 2: 10, 4: 5}, {1: 10, 2: 10}, {1: 0, 2: 0}
SWEPT = experiment_of(
    *(attaining(rate, good, chunk=1) for rate, good in FALLS.items()),
    *(attaining(rate, good, chunk=2) for rate, good in HOLDS.items()),
    *(attaining(rate, good, chunk=3) for rate, good in NEVER.items()),
    attaining(3, 7, chunk=4),  # one rate makes no curve
)
CURVES = {"chunk 1": FALLS, "chunk 2": HOLDS, "chunk 3": NEVER}


def bands(axes: Axes) -> list[PolyCollection]:
    return [each for each in axes.collections if isinstance(each, PolyCollection)]


def test_a_curve_has_two_rates_or_more() -> None:
    found = {series.name: [point.rate_per_s for point in points] for series, points in curves(SWEPT)}
    assert found == {name: [*goods] for name, goods in CURVES.items()}
    assert attainment(experiment_of(attaining(3, 7))) is None


def test_the_goodput_of_every_series_is_said_at_each_target() -> None:
    found = attainment(SWEPT)
    assert found is not None
    falls = {90: "2.4", 95: "2.2", 99: "2.04"}  # in proportion between 100 % at 2 and 50 % at 4
    assert found.says.startswith("Goodput. At 90 %: chunk 1 2.4/s")
    assert [note.split(":")[0] for note in found.notes] == ["At 95 %", "At 99 %"]
    for line, (target, rate) in zip([found.says.removeprefix("Goodput. "), *found.notes], falls.items(), strict=True):
        assert line.startswith(f"At {target} %: chunk 1 {rate}/s (")
        assert "; chunk 2 at least 2/s (" in line
        assert line.endswith("; chunk 3 below 1/s.")
    assert found.rows[2] == ("chunk 1", "4", 5, 10, "50.0 %", "23.7 %", "76.3 %")
    assert len(found.rows) == 7


def test_each_point_is_drawn_with_its_interval_in_the_colour_of_its_curve() -> None:
    (axes,) = drawn(attainment(SWEPT))
    lines = labelled(axes)
    assert [*lines] == legend(attainment(SWEPT)) == [*CURVES]
    uprights = [each for each in axes.collections if isinstance(each, LineCollection)]
    for (name, goods), band, upright in zip(CURVES.items(), bands(axes), uprights, strict=True):
        assert xs(lines[name]) == [*goods]
        assert ys(lines[name]) == pytest.approx([10 * good for good in goods.values()])
        ends = {rate: wilson(good, 10) for rate, good in goods.items()}
        corners = {(rate, round(100 * end, 6)) for rate, each in ends.items() for end in (each.low, each.high)}
        assert {(x, round(y, 6)) for x, y in np.asarray(band.get_paths()[0].vertices)} == corners
        for segment, (rate, each) in zip(upright.get_segments(), ends.items(), strict=True):
            assert segment.ravel() == pytest.approx([rate, 100 * each.low, rate, 100 * each.high])
        curve = to_rgb(lines[name].get_color())
        assert [*map(to_rgb, (*np.asarray(band.get_facecolor()), *np.asarray(upright.get_color())))] == [curve] * 2
        assert np.asarray(band.get_linewidth()).tolist() == [0], "no edge adds to the interval"


def test_a_cross_stands_where_a_curve_falls_below_a_target_and_nowhere_else() -> None:
    (axes,) = drawn(attainment(SWEPT))
    crosses = [(*xs(line), *ys(line)) for line in axes.lines if line.get_marker() == "x"]
    assert sorted(crosses) == [pytest.approx(each) for each in ((2.04, 99), (2.2, 95), (2.4, 90))]


def test_the_targets_are_lines_with_their_share_at_the_end() -> None:
    (axes,) = drawn(attainment(SWEPT))
    assert level(axes) == pytest.approx([90, 95, 99])
    assert [text.strip() for text in told([*axes.texts])] == ["90 %", "95 %", "99 %"]
    for text, target in zip(axes.texts, (90, 95, 99), strict=True):
        assert text.get_transform().transform(text.get_position()) == pytest.approx(
            [axes.transAxes.transform((1, 0))[0], axes.transData.transform((0, target))[1]]
        )


@pytest.mark.parametrize(("goods", "bottom"), [((10, 0), (0, 0)), ((100, 99), (80, 95))])
def test_the_axes_begin_at_no_load_and_never_below_no_share(goods: tuple[int, int], bottom: tuple[int, int]) -> None:
    (axes,) = drawn(attainment(experiment_of(*(attaining(k, good, max(goods)) for k, good in enumerate(goods, 4)))))
    assert axes.get_xlim()[0] == 0
    assert bottom[0] <= axes.get_ylim()[0] <= bottom[1]
    assert 100 < axes.get_ylim()[1] < 105
    assert "rate" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()
