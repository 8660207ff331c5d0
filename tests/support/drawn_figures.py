"""Figures drawn by matplotlib and read back: which lines, which bars, which texts stand where."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from pagewire.slo.report.figure import Figure
from pagewire.slo.report.sheet import LOOK


def canvas_of(figure: Figure | None) -> Canvas:
    """Return a figure drawn as the page and the files have it."""
    assert figure is not None
    with matplotlib.rc_context(LOOK):
        canvas = Canvas(layout="constrained")
        figure.draw(canvas)
    return canvas


def drawn(figure: Figure | None, *, has_legend: bool = True) -> list[Axes]:
    """Return the panels of a figure."""
    canvas = canvas_of(figure)
    assert bool(canvas.legends) is has_legend, "a legend says which is which"
    return canvas.axes


def legend(figure: Figure | None) -> list[str]:
    """Return what the legend names."""
    (found,) = canvas_of(figure).legends
    return [text.get_text() for text in found.get_texts()]


def labelled(axes: Axes) -> dict[str, Line2D]:
    """Return the lines that have a name in the legend, by it."""
    return {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def xs(line: Line2D) -> list[float]:
    """Return where a line's points are."""
    return [float(x) for x in np.asarray(line.get_xdata())]


def ys(line: Line2D) -> list[float]:
    """Return how high they are."""
    return [float(y) for y in np.asarray(line.get_ydata())]


def upright(axes: Axes) -> list[float]:
    """Return where dashed lines stand upright across the picture."""
    found = [xs(line) for line in axes.lines if line.is_dashed()]
    return [x for x, *others in found if others == [x]]


def level(axes: Axes) -> list[float]:
    """Return where lines lie across the whole picture."""
    return [ys(line)[0] for line in axes.lines if xs(line) == [0, 1]]


def bars(axes: Axes) -> list[Rectangle]:
    """Return every bar."""
    return [each for each in axes.patches if isinstance(each, Rectangle)]


def bars_at(axes: Axes, place: int) -> list[Rectangle]:
    """Return the bars that lie around a place."""
    return [bar for bar in bars(axes) if round(bar.get_y() + bar.get_height() / 2) == place]


def spans(axes: Axes, place: int) -> list[tuple[float, float]]:
    """Return the left and the right ends of the bars that lie in a place."""
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars_at(axes, place)]


def told(texts: list[Text]) -> list[str]:
    """Return what texts say."""
    return [text.get_text() for text in texts]


def has_grid(axes: Axes) -> tuple[bool, bool]:
    """Return whether there is a grid of upright lines, and of level ones."""
    upright, level = ({line.get_visible() for line in axis.get_gridlines()} for axis in (axes.xaxis, axes.yaxis))
    return upright == {True}, level == {True}
