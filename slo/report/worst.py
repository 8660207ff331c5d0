"""The requests of a run that were furthest from what they should meet, moment by moment. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pagewire.slo.figures.experiment import Trial
from pagewire.slo.figures.record import Record
from pagewire.slo.report.figure import Figure, milliseconds
from pagewire.slo.report.style import BOUND, HATCHES, INK, LEGEND, MISSED, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST = 10


@dataclass(frozen=True, slots=True)
class Worst:
    """An answered request, and by what factor it missed the objective it missed by most: above 1 is a miss."""

    record: Record
    factor: float
    measure: str


def worst(trial: Trial, most: int = MOST) -> list[Worst]:
    """Return the answered requests of the window that came furthest from an objective, the worst first.

    Without objectives, those that took longest from end to end; their factor is that to the median.
    """
    objectives, found = trial.summary.objectives.bounds_s, []
    e2e = trial.summary.measures["e2e"]
    bounds_s = objectives or ({"e2e": e2e.p50 / 1e3} if e2e is not None else {})
    for record in trial.counted:
        factors = [
            (value / bound_s, measure)
            for measure, bound_s in bounds_s.items()
            if record.is_answered and (value := record.value_s(measure)) is not None and bound_s > 0
        ]
        if factors:
            found.append(Worst(record, *max(factors)))
    return sorted(found, key=lambda each: -each.factor)[:most]


def moments_s(record: Record) -> list[float]:
    """Return when each part of an answer came, since the request was due."""
    return [] if record.ttft_s is None else list(accumulate(record.gaps_s, initial=record.ttft_s))


def worst_requests(trial: Trial, name: str, *, slug: str = "worst") -> Figure | None:
    """Return the picture, None where nothing was answered."""
    found = worst(trial)
    if not found:
        return None
    first = found[0]
    against = "the objective" if trial.summary.objectives.bounds_s else "the median"
    failed = sum(trial.summary.failures.values())
    return Figure(
        slug=slug,
        title=f"The worst requests of {name}",
        says=f"The worst has {first.factor:.2g} times {against} of {first.measure.upper()}; "
        f"the mildest of the {len(found)} that are drawn has {found[-1].factor:.2g} times.",
        definition="Answered requests by the largest factor between a measure and its objective (without objectives, "
        "between end to end and its median). From when each was due: until it was sent (hatched, the client's own "
        "delay), until the first token, and then its parts, a tick each. The dashed line is the objective of TTFT.",
        columns=("request", "due s", "sent late ms", "TTFT ms", "TPOT ms", "longest gap ms", "end to end ms", "factor"),
        rows=[
            (
                _name(each.record), f"{each.record.intended_s:.2f}", milliseconds(each.record.late_s),
                milliseconds(each.record.ttft_s), milliseconds(each.record.tpot_s),
                milliseconds(max(each.record.gaps_s, default=None)), milliseconds(each.record.e2e_s),
                f"{each.factor:.2f} ({each.measure.upper()})",
            )
            for each in found
        ],
        draw=lambda canvas: _draw(canvas, found, trial.summary.objectives.bounds_s.get("ttft")),
        height_in=1.5 + 0.28 * len(found),
        notes=[f"{failed} requests failed and are not drawn."] if failed else [],
    )  # fmt: skip


def _name(record: Record) -> str:
    return f"{record.arrival}.{record.turn}" if record.turn else str(record.arrival)


def _draw(canvas: Canvas, found: Sequence[Worst], bound_s: float | None) -> None:
    axes = canvas.subplots()
    for y, each in enumerate(found):
        record, moments = each.record, moments_s(each.record)
        late_s = max(0.0, record.late_s)
        labels = ("client's delay", "until the first token", "answer") if y == 0 else (None, None, None)
        axes.barh(
            y, late_s, height=0.6, facecolor="none", edgecolor=INK, hatch=HATCHES[1], linewidth=0.8, label=labels[0]
        )
        axes.barh(
            y, moments[0] - late_s, left=late_s, height=0.6, color=SERIES[1], alpha=0.55, linewidth=0, label=labels[1]
        )
        axes.barh(
            y, moments[-1] - moments[0], left=moments[0], height=0.3, color=SERIES[0], alpha=0.4, linewidth=0,
            label=labels[2],
        )  # fmt: skip
        # One broken line of all ticks: an answer may have thousands.
        axes.plot(
            [x for moment in moments for x in (moment, moment, math.nan)],
            [y - 0.3, y + 0.3, math.nan] * len(moments), color=SERIES[0], linewidth=0.7,
        )  # fmt: skip
    if bound_s is not None:
        axes.axvline(bound_s, color=MISSED, label=f"SLO of TTFT, {1e3 * bound_s:g} ms", **BOUND)
    axes.set_yticks(range(len(found)), [f"{_name(each.record)}: {each.factor:.2g}" for each in found])
    axes.set(xlabel="since the request was due, s", ylabel="request: factor")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    canvas.legend(**LEGEND | {"ncols": 4})
