"""What figures look like: every series has a colour, a marker and a dash of its own, so that colour is never alone.

Colours are those of the light page; the page itself gives them others in the dark (`DARK`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, SOFT, GRID, MISSED = "#1a1e27", "#566072", "#d5d9e0", "#b3261e"
SERIES = ("#1f5fd0", "#c2410c", "#2f8060", "#7c3aed", "#8a6d1a", "#b3206e", "#0e7490")
DARK = {
    INK: "#e7eaf0", SOFT: "#a6afbf", GRID: "#363d4a", MISSED: "#ff9b90",
    **dict(zip(SERIES, ("#84b0ff", "#ff9a5c", "#5fc093", "#bd9bff", "#e0bf5a", "#ff8cc3", "#5fd0e6"), strict=True)),
}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (7, 1, 1, 1, 1, 1)), (0, (2, 1)), (0, (9, 2)))
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "----", "oooo")

BOUND: Any = {"linestyle": (0, (4, 3)), "linewidth": 1}  # of what is to be met: the dash of no series
LEGEND: Any = {"loc": "outside lower center", "ncols": 3}

WIDTH_IN = 7.0
MOST = 6  # lines in one picture
TOP = 102  # of an axis of percents: what lies at 100 is seen whole


def line(place: int) -> dict[str, Any]:
    """Return colour, dash and marker of the line in a place."""
    at = place % len(SERIES)
    return {"color": SERIES[at], "linestyle": DASHES[at], "marker": MARKERS[at]}


def legend(canvas: Canvas, panels: Sequence[Axes]) -> None:
    """Put one legend below several panels: what stands in more than one of them stands in it once."""
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    canvas.legend(list(handles.values()), list(handles), **LEGEND)
