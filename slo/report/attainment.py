"""Attainment against request rate: where a curve crosses a target lies the goodput. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagewire.slo.figures.experiment import Experiment, Series
from pagewire.slo.report.figure import Cell, Figure, percent
from pagewire.slo.report.style import BOUND, INK, LEGEND, SOFT, TOP, line
from pagewire.slo.sweeps.goodput import TARGETS, RatePoint, goodput, rate_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Curve = tuple[Series, list[RatePoint]]


def curves(experiment: Experiment) -> list[Curve]:
    """Return the points of every series that was tried at two rates or more; a closed loop was at none."""
    found = [(series, rate_points(series.trials)) for series in experiment.rated()]
    return [(series, points) for series, points in found if len(points) > 1]


def attainment(experiment: Experiment) -> Figure | None:
    """Return the picture, None where nothing was tried at two rates."""
    found = curves(experiment)
    if not found:
        return None
    rows: list[Sequence[Cell]] = [
        (
            series.name, f"{point.rate_per_s:g}", point.attained.good, point.attained.total,
            percent(point.attained.share), percent(point.attained.interval.low), percent(point.attained.interval.high),
        )
        for series, points in found
        for point in points
    ]  # fmt: skip
    carried = [
        f"At {percent(target, 0)}: {'; '.join(f'{series.name} {goodput(points, target)}' for series, points in found)}."
        for target in TARGETS
    ]
    return Figure(
        slug="attainment",
        title="Attainment against request rate",
        says=f"Goodput. {carried[0]}",
        definition="Attainment is the share of all requests due in the steady window that met every objective; what "
        "failed met none. Bands and bars are Wilson's intervals at 95 %, which take requests as independent. Goodput "
        "at a target is the rate at which the curve first falls below it, in proportion between the two rates around "
        "it (where a cross stands); in brackets, where the ends of the intervals do.",
        columns=("series", "rate /s", "good", "of", "attainment", "from", "to"),
        rows=rows,
        draw=lambda canvas: _draw(canvas, found),
        height_in=4.2,
        notes=carried[1:],
    )


def _draw(canvas: Canvas, found: Sequence[Curve]) -> None:
    axes = canvas.subplots()
    for target in TARGETS:
        axes.axhline(100 * target, color=SOFT, **BOUND)
        axes.text(
            1, 100 * target, f" {percent(target, 0)}", transform=axes.get_yaxis_transform(), va="center",
            fontsize="small", color=SOFT,
        )  # fmt: skip
    for place, (series, points) in enumerate(found):
        look, rates = line(place), [point.rate_per_s for point in points]
        shares = [100 * point.attained.share for point in points]
        lows = [100 * point.attained.interval.low for point in points]
        highs = [100 * point.attained.interval.high for point in points]
        axes.fill_between(rates, lows, highs, color=look["color"], alpha=0.12, linewidth=0)
        axes.vlines(rates, lows, highs, color=look["color"], linewidth=0.8)
        axes.plot(rates, shares, label=series.name, **look)
    for told in [goodput(points, target) for _, points in found for target in TARGETS]:
        if told.is_crossing:
            axes.plot([told.least_per_s], [100 * told.target], "x", color=INK, markersize=6)
    axes.set(xlabel="request rate, 1/s", ylabel="requests that met every objective, %", ylim=(None, TOP))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    canvas.legend(**LEGEND)
