"""TTFT against TPOT at one load: the runs that no other beats in both are the Pareto front. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pagewire.slo.figures.experiment import Experiment
from pagewire.slo.report.figure import Figure, evenly
from pagewire.slo.report.shown import of_alone
from pagewire.slo.report.style import INK, legend, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_RATES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A run: its p95 of both, in milliseconds. `is_front` says that none at its rate is better in one and as good."""

    series: str
    rate_per_s: float
    ttft_ms: float
    tpot_ms: float
    is_front: bool = False


def front(spots: Sequence[Spot]) -> list[Spot]:
    """Return those that no other of `spots` beats: as good in both, and better in one; by rising TTFT."""
    kept = [
        spot
        for spot in spots
        if not any(
            other.ttft_ms <= spot.ttft_ms and other.tpot_ms <= spot.tpot_ms
            and (other.ttft_ms, other.tpot_ms) != (spot.ttft_ms, spot.tpot_ms)
            for other in spots
        )
    ]  # fmt: skip
    return sorted(kept, key=lambda spot: spot.ttft_ms)


def spots_by_rate(experiment: Experiment) -> dict[float, list[Spot]]:
    """Return the runs of every rate that two series or more were tried at, the front's told."""
    found: dict[float, list[Spot]] = {}
    for series in experiment.rated():
        for trial in series.trials:
            ttft, tpot = trial.summary.measures["ttft"], trial.summary.measures["tpot"]
            if ttft is not None and tpot is not None:
                spot = Spot(series=series.name, rate_per_s=trial.rate_per_s, ttft_ms=ttft.p95, tpot_ms=tpot.p95)
                found.setdefault(trial.rate_per_s, []).append(spot)
    return {
        rate: [replace(spot, is_front=spot in front(spots)) for spot in spots]
        for rate, spots in sorted(found.items())
        if len({spot.series for spot in spots}) > 1
    }


def trade_off(experiment: Experiment) -> Figure | None:
    """Return the picture, None where no two series were tried at one rate."""
    of = max(experiment.questions(), key=lambda each: sum(map(len, spots_by_rate(each).values())))
    found = spots_by_rate(of)
    if not found:
        return None
    drawn = evenly(list(found), MOST_RATES)
    said = [f"at {rate:g}/s: {', '.join(spot.series for spot in found[rate] if spot.is_front)}" for rate in found]
    names = list(dict.fromkeys(spot.series for spots in found.values() for spot in spots))
    return Figure(
        slug="trade-off",
        title="The price of TTFT in TPOT",
        says=f"On the front {'; '.join(said)}.",
        definition="Each run by the 95th percentiles of its TTFT and its TPOT, of the requests that have them; lower "
        "and further left is better. The line joins, at one rate, the runs that no other beats in both: the Pareto "
        "front. Runs at different rates are not held against each other.",
        columns=("series", "rate /s", "TTFT p95 ms", "TPOT p95 ms", "front"),
        rows=[
            (spot.series, f"{rate:g}", f"{spot.ttft_ms:.1f}", f"{spot.tpot_ms:.1f}", "yes" if spot.is_front else "")
            for rate, spots in found.items()
            for spot in spots
        ],
        draw=lambda canvas: _draw(canvas, {rate: found[rate] for rate in drawn}, names),
        height_in=3.6 if len(drawn) < 3 else 5.6,
        notes=[
            *([f"{len(drawn)} of {len(found)} rates are drawn."] if len(drawn) < len(found) else []),
            *of_alone(experiment, of),
        ],
    )


def _draw(canvas: Canvas, found: dict[float, list[Spot]], names: Sequence[str]) -> None:
    columns = min(2, len(found))
    panels = canvas.subplots(-(-len(found) // columns), columns, squeeze=False)
    flat = [axes for row in panels for axes in row]
    for axes, (rate, spots) in zip(flat, found.items(), strict=False):
        best = sorted((spot for spot in spots if spot.is_front), key=lambda spot: spot.ttft_ms)
        axes.plot([spot.ttft_ms for spot in best], [spot.tpot_ms for spot in best], color=INK)
        for spot in spots:
            look = line(names.index(spot.series)) | {"linestyle": "none", "markersize": 7, "label": spot.series}
            axes.plot(spot.ttft_ms, spot.tpot_ms, **look, fillstyle="full" if spot.is_front else "none")
        axes.set_title(f"{rate:g} requests/s")
        axes.set(xlabel="TTFT p95, ms", ylabel="TPOT p95, ms")
        axes.margins(0.15)
    for axes in flat[len(found) :]:
        axes.axis("off")
    legend(canvas, flat)
