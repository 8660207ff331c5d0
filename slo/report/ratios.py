"""Goodput by the number of prefill and of decode pods: a map of P:D. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pagewire.slo.figures.experiment import DECODE, PREFILL, Experiment, Series
from pagewire.slo.report.figure import Figure, percent
from pagewire.slo.report.shown import of_alone
from pagewire.slo.report.style import GRID, SERIES
from pagewire.slo.sweeps.goodput import TARGETS, Goodput, goodput, rate_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TARGET = TARGETS[0]
DEEPEST = 0.5  # how much of the colour the best cell has: text stands on it

Cells = Mapping[tuple[int, int], tuple[Goodput, Series]]


def ratio_cells(experiment: Experiment) -> Cells:
    """Return, by (prefill pods, decode pods), the goodput at TARGET of the best series of that composition."""
    found: dict[tuple[int, int], tuple[Goodput, Series]] = {}
    for series in experiment.rated():
        if PREFILL not in series.labels or DECODE not in series.labels:
            continue
        at = (int(series.labels[PREFILL]), int(series.labels[DECODE]))
        told = goodput(rate_points(series.trials), TARGET)
        if at not in found or told.least_per_s > found[at][0].least_per_s:
            found[at] = (told, series)
    return found


def ratios(experiment: Experiment) -> Figure | None:
    """Return the picture, None where fewer than two compositions were tried."""
    of = max(experiment.questions(), key=lambda each: len(ratio_cells(each)))
    cells = ratio_cells(of)
    if len(cells) < 2:
        return None
    best_at, (best, _) = max(cells.items(), key=lambda item: item[1][0].least_per_s / sum(item[0]))
    return Figure(
        slug="ratios",
        title=f"Goodput at {percent(TARGET, 0)} by P:D",
        says=f"The most for each pod has {best_at[0]}P:{best_at[1]}D: {best}, "
        f"{best.least_per_s / sum(best_at):.3g}/s a pod.",
        definition=f"The request rate up to which at least {percent(TARGET, 0)} of requests met every objective, for "
        "each number of prefill pods (P) and decode pods (D), in all and divided by the pods. ≥ stands before the "
        "highest rate that was tried, where it still held; < before the lowest, where it did not. Where a composition "
        "was tried in more than one way, the best stands here. Deeper is more.",
        columns=("P", "D", "goodput", "a pod /s", "series"),
        rows=[
            (at[0], at[1], str(told), f"{told.least_per_s / sum(at):.3g}", series.name)
            for at, (told, series) in sorted(cells.items())
        ],
        draw=lambda canvas: _draw(canvas, cells),
        height_in=1.2 + 0.75 * len({prefill for prefill, _ in cells}),
        notes=of_alone(experiment, of),
    )


def _short(told: Goodput) -> str:
    if told.rate_per_s is None:
        return f"≥ {told.highest_per_s:.3g}/s"
    return f"{told.rate_per_s:.3g}/s" if told.is_crossing else f"< {told.lowest_per_s:.3g}/s"


def _draw(canvas: Canvas, cells: Cells) -> None:
    axes = canvas.subplots()
    prefills, decodes = sorted({each for each, _ in cells}), sorted({each for _, each in cells})
    most = max(told.least_per_s for told, _ in cells.values()) or 1.0
    for (prefill, decode), (told, _) in cells.items():
        x, y = decodes.index(decode), prefills.index(prefill)
        axes.bar(
            x, 1, width=1, bottom=y - 0.5, color=SERIES[0], alpha=0.04 + (DEEPEST - 0.04) * told.least_per_s / most,
            linewidth=0,
        )  # fmt: skip
        axes.text(x, y + 0.14, _short(told), ha="center", va="center", fontsize="large")
        axes.text(
            x, y - 0.2, f"{told.least_per_s / (prefill + decode):.3g} a pod", ha="center", va="center", fontsize="small"
        )
    axes.set_xticks(range(len(decodes)), [f"{each}D" for each in decodes])
    axes.set_yticks(range(len(prefills)), [f"{each}P" for each in prefills])
    axes.set(xlim=(-0.5, len(decodes) - 0.5), ylim=(-0.5, len(prefills) - 0.5))
    axes.set(xlabel="decode pods", ylabel="prefill pods")
    axes.grid(visible=False)
    for x in range(1, len(decodes)):
        axes.axvline(x - 0.5, color=GRID, linewidth=1)
    for y in range(1, len(prefills)):
        axes.axhline(y - 0.5, color=GRID, linewidth=1)
