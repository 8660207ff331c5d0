"""TTFT against TPOT: runs of one rate held against each other, the front joined by a line, a panel for each rate."""

from __future__ import annotations

from itertools import product

import pytest
from drawn_figures import canvas_of, labelled, legend, xs, ys
from made_up_runs import SLO, experiment_of, failed, record, trial_of
from matplotlib.axes import Axes

from pagewire.slo.figures.experiment import Experiment, Trial
from pagewire.slo.report.figure import Figure
from pagewire.slo.report.trade_off import Spot, front, spots_by_rate, trade_off


def spot(ttft_ms: float, tpot_ms: float, series: str = "a") -> Spot:
    return Spot(series=series, rate_per_s=1.0, ttft_ms=ttft_ms, tpot_ms=tpot_ms)


def at(rate: float, ttft_ms: float, tpot_ms: float, *, slo: str = SLO, **labels: int | str) -> Trial:
    return trial_of([record(0, 0.0, ttft_ms / 1e3, (tpot_ms / 1e3,))], slo=slo, rate=rate, **labels)


def rates(*tried: float) -> Experiment:
    """Return two series at these rates: the first quicker to begin, the second to go on."""
    return experiment_of(*(at(rate, 100 + way, 20 - way, way=way) for way in (1, 2) for rate in tried))


def made(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def panels(figure: Figure | None) -> list[Axes]:
    return [axes for axes in canvas_of(figure).axes if axes.axison]


def test_the_front_holds_what_no_other_beats_by_rising_ttft() -> None:
    spots = [spot(x, y, f"{x}{y}") for x, y in ((3, 1), (1, 3), (2, 2), (2, 2), (3, 2), (2, 3), (1, 4), (4, 1))]
    assert [(each.ttft_ms, each.tpot_ms) for each in front(spots)] == [(1, 3), (2, 2), (2, 2), (3, 1)]
    places = [*product(range(3), range(3))]
    for one, other in product(places, places):
        beaten = other[0] <= one[0] and other[1] <= one[1] and one != other
        assert (spot(*one) in front([spot(*one), spot(*other)])) != beaten


def test_only_rates_that_two_series_were_tried_at_are_told_and_only_runs_with_both_measures() -> None:
    one_token = trial_of([record(0, 0.0, 0.1, ())], rate=2, way=2)
    nothing = trial_of([failed(0, 0.0)], rate=2, way=3)
    found = spots_by_rate(
        experiment_of(
            at(4, 50, 9, way=1), at(1, 30, 8, way=1), at(2, 40, 7, way=1), one_token, nothing, at(1, 20, 9, way=2),
            at(1, 40, 9, way=2), at(4, 60, 10, way=2), at(8, 1, 1, way=1), at(8, 2, 2, way=1),
        )
    )  # fmt: skip
    assert [*found] == [1, 4]
    assert {
        rate: [(each.series, round(each.ttft_ms), round(each.tpot_ms), each.is_front) for each in spots]
        for rate, spots in found.items()
    } == {
        1: [("way 1", 30, 8, True), ("way 2", 20, 9, True), ("way 2", 40, 9, False)],
        4: [("way 1", 50, 9, True), ("way 2", 60, 10, False)],
    }


def test_a_spot_is_on_no_front_until_it_is_said() -> None:
    assert not spot(1, 1).is_front


def test_the_front_of_every_rate_is_said_and_marked_in_the_table() -> None:
    found = made(
        trade_off(experiment_of(at(1, 30, 8, way=1), at(1, 20, 9, way=2), at(2, 3, 3, way=1), at(2, 4, 4, way=2)))
    )
    assert found.says == "On the front at 1/s: way 1, way 2; at 2/s: way 1."
    assert [tuple(row) for row in found.rows] == [
        ("way 1", "1", "30.0", "8.0", "yes"),
        ("way 2", "1", "20.0", "9.0", "yes"),
        ("way 1", "2", "3.0", "3.0", "yes"),
        ("way 2", "2", "4.0", "4.0", ""),
    ]
    assert [*found.notes] == []
    assert trade_off(experiment_of(at(1, 30, 8, way=1), at(2, 30, 8, way=2))) is None


@pytest.mark.parametrize(
    ("tried", "drawn"),
    [([1], [1]), ([1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 3, 4, 5], [1, 2, 3, 5]), ([*range(1, 9)], [1, 3, 5, 8])],
)
def test_four_rates_are_drawn_at_most_the_ends_among_them(tried: list[float], drawn: list[float]) -> None:
    found = made(trade_off(rates(*tried)))
    assert [axes.get_title() for axes in panels(found)] == [f"{rate} requests/s" for rate in drawn]
    assert len(found.rows) == 2 * len(tried), "the table has all"
    left_out = [f"4 of {len(tried)} rates are drawn."] if len(tried) > 4 else []
    assert [*found.notes] == left_out


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 2)])
def test_panels_stand_two_abreast_and_a_second_row_takes_more_room(count: int, rows: int, columns: int) -> None:
    found = made(trade_off(rates(*range(1, count + 1))))
    canvas = canvas_of(found)
    assert len(canvas.axes) == rows * columns
    assert [axes.axison for axes in canvas.axes] == [place < count for place in range(rows * columns)]
    grid = canvas.axes[0].get_gridspec()
    assert grid is not None
    assert (grid.nrows, grid.ncols) == (rows, columns)
    one_row = made(trade_off(rates(1))).height_in
    assert (found.height_in > one_row) == (rows > 1)
    assert found.height_in < 2 * one_row


def test_every_run_is_a_mark_that_is_full_on_the_front_which_a_line_joins() -> None:
    runs = {1: (30, 8), 2: (20, 9), 3: (40, 9), 4: (25, 8.5)}
    figure = trade_off(experiment_of(*(at(1, *both, way=way) for way, both in runs.items())))
    (axes,) = panels(figure)
    marks = labelled(axes)
    assert [*marks] == legend(figure) == [f"way {way}" for way in runs]
    for way, (ttft_ms, tpot_ms) in runs.items():
        mark = marks[f"way {way}"]
        assert [*xs(mark), *ys(mark)] == pytest.approx([ttft_ms, tpot_ms])
        assert mark.get_fillstyle() == ("none" if way == 3 else "full")
        assert mark.get_linestyle() == "None"
    assert len({mark.get_marker() for mark in marks.values()}) == 4
    (joined,) = [each for each in axes.lines if each not in marks.values()]
    assert xs(joined) == pytest.approx([20, 25, 30])
    assert ys(joined) == pytest.approx([9, 8.5, 8])
    assert "TTFT" in axes.get_xlabel()
    assert "TPOT" in axes.get_ylabel()


def test_a_series_looks_the_same_in_every_panel_and_is_once_in_the_legend() -> None:
    figure = trade_off(
        experiment_of(
            at(1, 30, 8, way=1), at(1, 20, 9, way=2), at(2, 3, 3, way=2), at(2, 4, 4, way=3), at(2, 5, 5, way=1)
        )
    )
    first, second = (labelled(axes) for axes in panels(figure))
    for name in ("way 1", "way 2"):
        assert first[name].get_marker() == second[name].get_marker()
        assert first[name].get_color() == second[name].get_color()
    assert [*second] == ["way 1", "way 2", "way 3"]
    assert sorted(legend(figure)) == ["way 1", "way 2", "way 3"]


def test_of_two_questions_the_one_with_more_runs_to_hold_against_each_other_is_drawn() -> None:
    few = [at(1, 30, 8, way=way, slo="ttft=1s") for way in (1, 2)]
    many = [at(1, 20 + way, 9, way=way) for way in (1, 2, 3)]
    for trials in ([*few, *many], [*many, *few]):
        found = made(trade_off(experiment_of(*trials)))
        assert len(found.rows) == 3
        assert [*found.notes] == ["Of these runs alone: slo ttft=500ms,tpot=50ms."]
