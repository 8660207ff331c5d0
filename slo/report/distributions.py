"""Which share of requests had its first token, and its pace, within what time: two CDFs with the SLO in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagewire.slo.figures.experiment import Experiment, Trial
from pagewire.slo.figures.record import NAMES
from pagewire.slo.report.figure import Cell, Figure, evenly, extremes, percent
from pagewire.slo.report.style import BOUND, SOFT, TOP, legend, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MEASURES = ("ttft", "tpot")
STEPS = 400  # of a curve, at most
WIDE = 20  # times the middle, from which on a tail is drawn on a logarithmic axis


def cdf(trial: Trial, measure: str) -> list[tuple[float, float]]:
    """Return (milliseconds, share of all requests within it), rising; every step of it, or STEPS of them.

    The first point is what is there without waiting (answers of one token have no TPOT, and meet any); those that
    failed never come, so the last one may be below 1. At a bound, the share is the attainment of that objective.
    """
    counted = trial.counted
    answered = [each.value_s(measure) for each in counted if each.is_answered]
    values = sorted(1e3 * value for value in answered if value is not None)
    base = sum(value is None for value in answered)
    if not values:
        return []
    places = evenly(range(len(values)), STEPS)
    return [(0.0, base / len(counted)), *((values[place], (base + place + 1) / len(counted)) for place in places)]


def distributions(experiment: Experiment, shown: Sequence[Trial]) -> Figure | None:
    """Return the picture of the trials that are shown, None where none had an answer."""
    found = [(experiment.name_of(each), {name: cdf(each, name) for name in MEASURES}, each) for each in shown]
    if not any(curve for _, by_measure, _ in found for curve in by_measure.values()):
        return None
    rows = [_row(name, measure, trial) for name, _, trial in found for measure in MEASURES]
    met = {
        measure: {
            name: each.summary.attained[measure].share for name, _, each in found if measure in each.summary.attained
        }
        for measure in MEASURES
    }
    said = [f"{NAMES[name]} was met by {extremes(shares, percent)}" for name, shares in met.items() if shares]
    return Figure(
        slug="distributions",
        title="TTFT and TPOT",
        says="; ".join(said) + "." if said else "No objective was set for them.",
        definition="TTFT: from when a request was due to the first part of its answer with a token. TPOT: (end to end "
        "- TTFT) / (tokens - 1), one mean a request, of answers of two tokens or more; those of one have no TPOT and "
        "count as met. Shares are of all requests of the window: what failed is never there, so a curve may end below "
        "100 %. Where a curve meets the SLO's vertical line, it is that objective's attainment. Percentiles in the "
        "table are of the requests that have the measure.",
        columns=("run", "measure", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "SLO ms", "met", "from", "to"),
        rows=rows,
        draw=lambda canvas: _draw(canvas, found),
        notes=_notes(experiment, shown),
    )


def _notes(experiment: Experiment, shown: Sequence[Trial]) -> list[str]:
    if len(shown) == len(experiment.trials):
        return []
    return [f"{len(shown)} of {len(experiment.trials)} runs are drawn here; the figures of all are in the last table."]


def _row(name: str, measure: str, trial: Trial) -> Sequence[Cell]:
    told, bound_s = trial.summary.measures[measure], trial.summary.objectives.bounds_s.get(measure)
    percentiles = [""] * 4 if told is None else [f"{each:.1f}" for each in (told.p50, told.p90, told.p95, told.p99)]
    attained = trial.summary.attained.get(measure)
    met = ["", "", ""]
    if attained is not None:
        met = [percent(each) for each in (attained.share, attained.interval.low, attained.interval.high)]
    return (name, NAMES[measure], *percentiles, "" if bound_s is None else f"{1e3 * bound_s:g}", *met)


def _draw(canvas: Canvas, found: Sequence[tuple[str, dict[str, list[tuple[float, float]]], Trial]]) -> None:
    panels = canvas.subplots(1, 2, sharey=True)
    for axes, measure in zip(panels, MEASURES, strict=True):
        drawn: list[float] = []
        for place, (name, curves, _) in enumerate(found):
            if curve := curves[measure]:
                drawn += [x for x, _ in curve[1:]]
                look = line(place) | {
                    "markevery": ((len(curve) // 10 + place * 3) % len(curve), max(1, len(curve) // 4))
                }
                axes.step([x for x, _ in curve], [100 * y for _, y in curve], where="post", label=name, **look)
        if drawn and max(drawn) >= WIDE * sorted(drawn)[len(drawn) // 2] and min(drawn) > 0:
            axes.set_xscale("log")
        for bound_ms in sorted(
            {1e3 * trial.summary.objectives.bounds_s[measure] for *_, trial in found
             if measure in trial.summary.objectives.bounds_s}
        ):  # fmt: skip
            axes.axvline(bound_ms, color=SOFT, **BOUND)
            axes.text(
                bound_ms, 1, f"SLO {bound_ms:g} ms", transform=axes.get_xaxis_transform(), ha="center", va="bottom",
                fontsize="small", color=SOFT,
            )  # fmt: skip
        axes.set(xlabel=f"{NAMES[measure]}, ms", ylim=(0, TOP))
    panels[0].set_ylabel("share of all requests, %")
    legend(canvas, panels)
