"""The map of P:D: a cell for each composition with what its best series carries, deeper where that is more."""

from __future__ import annotations

from typing import Any

import pytest
from drawn_figures import bars, drawn, has_grid, told, xs, ys
from made_up_runs import attaining, experiment_of
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from pagewire.slo.figures.experiment import Experiment, Trial
from pagewire.slo.report.figure import Figure
from pagewire.slo.report.ratios import DEEPEST, ratio_cells, ratios


def carrying(rate: float, prefill: int, decode: int, **labels: Any) -> list[Trial]:
    """Return a composition that carries `rate` at 90 %: in proportion between 10 of 10, half before, and 8 of 10."""
    return [attaining(rate * at, good, prefill=prefill, decode=decode, **labels) for at, good in ((0.5, 10), (1.5, 8))]


def holding(rate: float, prefill: int, decode: int) -> list[Trial]:
    """Return one that was not brought to fall."""
    return [attaining(rate * at, 10, prefill=prefill, decode=decode) for at in (0.5, 1)]


def missing(rate: float, prefill: int, decode: int) -> list[Trial]:
    """Return one that fell at once."""
    return [attaining(rate * at, 1, prefill=prefill, decode=decode) for at in (1, 2)]


def experiment(*series: list[Trial]) -> Experiment:
    return experiment_of(*(each for trials in series for each in trials))


MAP = experiment(
    carrying(4, 1, 1), carrying(5, 1, 2), carrying(6, 2, 2), holding(8, 3, 4), missing(3, 3, 1),
    [attaining(rate, 10, colocated=2) for rate in (1, 20)],
    [attaining(20, 10, prefill=4, where="no decode")], [attaining(20, 10, decode=4, where="no prefill")],
)  # fmt: skip


def made(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def cells(axes: Axes) -> dict[tuple[float, float], float]:
    """Return how deep each square is, by where its middle is."""
    return {
        (bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2): to_rgba(bar.get_facecolor())[3]
        for bar in bars(axes)
    }


def test_each_composition_has_the_goodput_of_its_best_series_the_first_of_those_alike() -> None:
    found = ratio_cells(
        experiment(
            carrying(4, 1, 1, chunk=1), carrying(5, 1, 1, chunk=2), carrying(3, 1, 1, chunk=3),
            carrying(2, 2, 1, chunk=1), carrying(2, 2, 1, chunk=2),
        )
    )  # fmt: skip
    assert {at: told.least_per_s for at, (told, _) in found.items()} == pytest.approx({(1, 1): 5, (2, 1): 2})
    assert {at: series.labels["chunk"] for at, (_, series) in found.items()} == {(1, 1): 2, (2, 1): 1}


def test_only_compositions_of_both_kinds_of_pods_are_on_the_map() -> None:
    assert {at: told.least_per_s for at, (told, _) in ratio_cells(MAP).items()} == pytest.approx(
        {(1, 1): 4, (1, 2): 5, (2, 2): 6, (3, 4): 8, (3, 1): 0}
    )


def test_a_map_has_two_compositions_or_more() -> None:
    assert ratios(experiment(carrying(4, 1, 1))) is None
    assert len(made(ratios(experiment(carrying(4, 1, 1), carrying(4, 1, 2)))).rows) == 2


def test_the_table_is_by_composition_and_the_best_is_who_carries_most_for_each_pod() -> None:
    found = made(ratios(MAP))
    assert found.title == "Goodput at 90 % by P:D"
    assert found.says.startswith("The most for each pod has 1P:1D: 4/s (")
    assert found.says.endswith(", 2/s a pod.")
    assert [(*row[:2], row[3], row[4]) for row in found.rows] == [
        (1, 1, "2", "1P:1D"),
        (1, 2, "1.67", "1P:2D"),
        (2, 2, "1.5", "2P:2D"),
        (3, 1, "0", "3P:1D"),
        (3, 4, "1.14", "3P:4D"),
    ]
    for row, says in zip(found.rows, ("4/s", "5/s", "6/s", "below 3/s", "at least 8/s"), strict=True):
        assert str(row[2]).startswith(says)
    assert [*found.notes] == []
    lopsided = made(ratios(experiment(carrying(4, 2, 3), carrying(7, 3, 2))))
    assert lopsided.says.startswith("The most for each pod has 3P:2D: 7/s (")


def test_of_two_questions_the_one_with_more_compositions_is_drawn() -> None:
    few = [*carrying(4, 1, 1), *carrying(4, 2, 1)]
    many = [
        attaining(rate, 10, slo="ttft=1s", prefill=prefill, decode=decode)
        for prefill, decode in ((1, 1), (1, 2), (2, 2))
        for rate in (1, 2)
    ]
    for trials in ([*few, *many], [*many, *few]):
        found = made(ratios(experiment_of(*trials)))
        assert len(found.rows) == 3
        assert [*found.notes] == ["Of these runs alone: slo ttft=1000ms."]


def test_every_composition_is_a_square_of_the_map_as_deep_as_it_carries_much() -> None:
    (axes,) = drawn(ratios(MAP), has_legend=False)
    found = cells(axes)
    assert [*found] == [(0, 0), (1, 0), (1, 1), (2, 2), (0, 2)]
    assert {(bar.get_width(), bar.get_height(), bar.get_linewidth()) for bar in bars(axes)} == {(1, 1, 0)}
    none, *rising = sorted(found.values())
    assert found[0, 2] == none
    assert 0 < none < 0.1, "a place that was tried is seen"
    assert found[2, 2] == rising[-1] == pytest.approx(DEEPEST)
    steps = [depth - none for depth in (found[0, 0], found[1, 0], found[1, 1], found[2, 2])]
    assert steps == pytest.approx([steps[-1] * rate / 8 for rate in (4, 5, 6, 8)])
    assert len({bar.get_facecolor()[:3] for bar in bars(axes)}) == 1


def test_a_map_on_which_nobody_carries_anything_is_drawn_too() -> None:
    (axes,) = drawn(ratios(experiment(missing(3, 1, 1), missing(3, 2, 1))), has_legend=False)
    assert len({*cells(axes).values()}) == 1


def test_a_square_has_its_goodput_in_its_upper_half_and_that_of_a_pod_below() -> None:
    (axes,) = drawn(ratios(MAP), has_legend=False)
    texts = [text.get_position() for text in axes.texts]
    assert told([*axes.texts]) == [
        "4/s", "2 a pod", "5/s", "1.67 a pod", "6/s", "1.5 a pod", "≥ 8/s", "1.14 a pod", "< 3/s", "0 a pod",
    ]  # fmt: skip
    for (x, y), (upper, lower) in zip(cells(axes), zip(texts[::2], texts[1::2], strict=True), strict=True):
        assert upper[0] == lower[0] == x
        assert y - 0.5 < lower[1] < y < upper[1] < y + 0.5


def test_the_map_shows_whole_squares_with_lines_between_them_and_what_they_are() -> None:
    (axes,) = drawn(ratios(MAP), has_legend=False)
    assert told(axes.get_xticklabels()) == ["1D", "2D", "4D"]
    assert told(axes.get_yticklabels()) == ["1P", "2P", "3P"]
    assert [*axes.get_xticks()] == [*axes.get_yticks()] == [0, 1, 2]
    assert (axes.get_xlim(), axes.get_ylim()) == ((-0.5, 2.5), (-0.5, 2.5))
    assert [xs(line)[0] for line in axes.lines if ys(line) == [0, 1]] == [0.5, 1.5]
    assert [ys(line)[0] for line in axes.lines if xs(line) == [0, 1]] == [0.5, 1.5]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("decode pods", "prefill pods")
    assert has_grid(axes) == (False, False)


def test_the_map_is_as_high_as_there_are_rows() -> None:
    heights = [
        made(
            ratios(experiment(*(carrying(4, prefill, decode) for prefill in range(1, n + 1) for decode in (1, 2))))
        ).height_in
        for n in (1, 2, 4)
    ]
    assert heights[1] - heights[0] > 0
    assert heights[2] - heights[1] == pytest.approx(2 * (heights[1] - heights[0]))
