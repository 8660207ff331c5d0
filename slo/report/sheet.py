"""A figure drawn: as an element of the page, whose colours are the page's, or as files. The one place of matplotlib.

Invariant: an element names nothing outside itself, and its ids are those of no other.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure as Canvas

from pagewire.slo.report.figure import Figure
from pagewire.slo.report.style import DARK, GRID, INK, SOFT, WIDTH_IN

PNG_DPI = 160
LOOK: Any = {  # rcParams: matplotlib types their names one by one
    "axes.axisbelow": True, "axes.edgecolor": SOFT, "axes.facecolor": "none", "axes.grid": True,
    "axes.labelcolor": INK, "axes.labelsize": 9,
    "axes.spines.right": False, "axes.spines.top": False, "axes.titlesize": 9, "font.family": "sans-serif",
    "font.size": 9, "grid.color": GRID, "grid.linewidth": 0.7, "hatch.linewidth": 0.6, "legend.fontsize": 8,
    "legend.frameon": False, "lines.linewidth": 1.6, "lines.markersize": 4.5,
    "svg.fonttype": "none", "svg.hashsalt": "pagewire", "text.color": INK,
    "xtick.color": SOFT, "xtick.labelcolor": INK, "xtick.labelsize": 8, "ytick.color": SOFT, "ytick.labelcolor": INK,
    "ytick.labelsize": 8, "legend.handlelength": 3.2,
}  # fmt: skip
NO_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}


@contextmanager
def _canvas(figure: Figure) -> Iterator[Canvas]:
    with matplotlib.rc_context(LOOK):
        canvas = Canvas(figsize=(WIDTH_IN, figure.height_in), layout="constrained")
        figure.draw(canvas)
        yield canvas


def svg(figure: Figure) -> ElementTree.Element:
    """Return the picture for a page: colours are variables (`variable`), ids begin with the slug."""
    with _canvas(figure) as canvas:
        file = io.BytesIO()
        canvas.savefig(file, format="svg", transparent=True, metadata=NO_DATE)
    drawn = ElementTree.fromstring(file.getvalue())
    for parent in drawn.iter():
        parent.tag = _local(parent.tag)
        parent.attrib = {_local(name): _own(value, figure.slug) for name, value in parent.attrib.items()}
        if "id" in parent.attrib:
            parent.attrib["id"] = f"{figure.slug}-{parent.attrib['id']}"
    for parent in [drawn, *drawn.iter("defs")]:
        for child in [*parent.findall("metadata"), *parent.findall("style")]:  # the page has a style of its own
            parent.remove(child)
    drawn.attrib = {"viewBox": drawn.attrib["viewBox"], "role": "img", "aria-labelledby": f"{figure.slug}-said"}
    title = ElementTree.Element("title", {"id": f"{figure.slug}-said"})
    title.text = f"{figure.title}. {figure.says}"
    drawn.insert(0, title)
    return drawn


def variable(color: str) -> str:
    """Return the name of the page's variable for one of our colours."""
    return f"--c-{color.removeprefix('#')}"


def write(figure: Figure, folder: Path) -> list[Path]:
    """Write the picture as SLUG.svg and SLUG.png, dark on white, and return their paths."""
    paths = [folder / f"{figure.slug}.{kind}" for kind in ("svg", "png")]
    with _canvas(figure) as canvas:
        for path in paths:
            canvas.savefig(path, dpi=PNG_DPI, facecolor="white", metadata=NO_DATE if path.suffix == ".svg" else None)
    return paths


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _own(value: str, slug: str) -> str:
    value = re.sub(r"^#(?=[A-Za-z])", f"#{slug}-", value) if not re.fullmatch(r"#[0-9a-f]{6}", value) else value
    value = re.sub(r"url\(#", f"url(#{slug}-", value)
    return re.sub(r"#[0-9a-f]{6}", lambda found: _themed(found[0]), value)


def _themed(color: str) -> str:
    return f"var({variable(color)})" if color in DARK else color
