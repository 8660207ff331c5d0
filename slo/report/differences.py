"""Two runs held against each other, difference by difference with its interval. Pure but for the drawing of lots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagewire.slo.figures.comparison import BEYOND, RESAMPLES, Difference
from pagewire.slo.report.figure import Figure
from pagewire.slo.report.style import GRID, INK, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def differences(first: str, second: str, found: Sequence[Difference], seed: int) -> Figure:
    """Return the picture of what `compare` found between the runs of these names."""
    return Figure(
        slug="differences",
        title=f"{second} against {first}",
        says="; ".join(f"{each.what}: {each.says}" for each in found) + ".",
        definition=f"{second} less {first}, with intervals at 95 %. Attainment: Newcombe's interval from Wilson's two. "
        f"Percentiles: {RESAMPLES} bootstrap resamples (seed {seed}) of answered requests, drawn in stretches of "
        "neighbours, since requests that queue behind each other are not independent. Where an interval holds 0, no "
        f"difference can be told; of percentiles with fewer than {BEYOND} requests beyond them, nothing is. An "
        "interval knows this run's chance alone, not what changes from one run to the next: repeat what is close.",
        columns=("what", first, second, "difference", "from", "to", "says"),
        rows=[
            (
                f"{each.what}, {_unit(each)}", f"{each.first:.1f}", f"{each.second:.1f}", f"{each.value:+.1f}",
                _signed(each.low), _signed(each.high), each.says,
            )
            for each in found
        ],
        draw=lambda canvas: _draw(canvas, found),
        height_in=1.1 + 0.34 * len(found),
    )  # fmt: skip


def _unit(each: Difference) -> str:
    return "%" if each.unit == "points" else each.unit


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}"


def _draw(canvas: Canvas, found: Sequence[Difference]) -> None:
    """Draw each as a share of what the first run had, so that points and milliseconds stand on one axis."""
    axes = canvas.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    for y, each in enumerate(found):
        scale = 100 / each.first if each.first else 1.0
        color = SERIES[0] if each.is_told else GRID
        if each.low is not None and each.high is not None:
            axes.hlines(y, each.low * scale, each.high * scale, color=color, linewidth=5, alpha=0.8)
        filled = "full" if each.is_told else "none"
        axes.plot(each.value * scale, y, "D", color=INK, markersize=6, fillstyle=filled)
    axes.set_yticks(range(len(found)), [each.what for each in found])
    axes.set_xlabel("difference, % of the first run's (filled: told apart; hollow: not)")
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.margins(x=0.1)
