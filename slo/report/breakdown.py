"""Where the time to the first token went, part by part, on average and for the slowest. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagewire.slo.figures.experiment import Experiment, Trial
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.ttft_parts import BEFORE, BEHIND
from pagewire.slo.report.figure import FEW, Figure, percent
from pagewire.slo.report.style import HATCHES, INK, LEGEND, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SLOWEST = 0.05
ELSEWHERE = "elsewhere"
STACK = (*BEFORE, ELSEWHERE)  # they add up to TTFT
NAMES = {
    "router": "router queue", "admission": "decode admission", "prefill_queue": "prefill queue", "compute": "compute",
    "queue_and_compute": "queue and compute, where it decodes", ELSEWHERE: "elsewhere",
    "exposed_transfer": "exposed transfer", "first_step": "first step",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Means over `count` requests in milliseconds by part; those of STACK add up to `ttft_ms`."""

    name: str
    count: int
    ttft_ms: float
    parts_ms: dict[str, float]


def stack(name: str, records: Sequence[Record]) -> Stack:
    """Return the means over records that hold their parts; what no part tells is elsewhere: network, client, relay."""
    count = len(records)

    def mean_ms(values: Sequence[float]) -> float:
        return 1e3 * math.fsum(values) / count

    parts_ms = {
        part: mean_ms([(record.ttft_parts_s or {}).get(part, 0.0) for record in records]) for part in (*BEFORE, *BEHIND)
    }
    ttft_ms = mean_ms([record.ttft_s or 0.0 for record in records])
    parts_ms[ELSEWHERE] = ttft_ms - math.fsum(parts_ms[part] for part in BEFORE)
    return Stack(name=name, count=count, ttft_ms=ttft_ms, parts_ms=parts_ms)


def stacks(name: str, trial: Trial) -> list[Stack]:
    """Return the means of all answered requests of the window that hold their parts, and of the slowest SLOWEST."""
    told = [each for each in trial.counted if each.is_answered and each.ttft_parts_s is not None]
    if not told:
        return []
    told.sort(key=lambda each: each.ttft_s or 0.0)
    slowest = told[-math.ceil(SLOWEST * len(told)) :]
    return [stack(f"{name}, all", told), stack(f"{name}, slowest {percent(SLOWEST, 0)}", slowest)]


def breakdown(experiment: Experiment, shown: Sequence[Trial]) -> Figure | None:
    """Return the picture of the trials that are shown, None where no record says where its time went."""
    found = [each for trial in shown for each in stacks(experiment.name_of(trial), trial)]
    if not found:
        return None
    used = [part for part in (*STACK, *BEHIND) if any(each.parts_ms[part] > 0 for each in found)]
    said = [_most(each) for each in found]
    if len(said) > 2 * FEW:
        said = [_most(max(found, key=lambda each: each.ttft_ms))]
    return Figure(
        slug="breakdown",
        title="Where the time to the first token went",
        says="; ".join(said) + ".",
        definition="Means in milliseconds, so that the parts up to ◆ add up to the mean TTFT. Router queue: until a "
        "request was handed to a pod. Decode admission: until its blocks were reserved. Prefill queue and compute: on "
        "the prefill pod, fetching of a cached prefix with the latter; a pod that builds a prompt where it decodes "
        "does not tell them apart. Elsewhere: what lies between processes and at this client. The first token does not "
        "wait for the KV's journey: what is behind ◆ (exposed transfer, first step) the second token waited for.",
        columns=("run", "requests", "TTFT ms", *(f"{NAMES[part]} ms" for part in used)),
        rows=[
            (each.name, each.count, f"{each.ttft_ms:.1f}", *(f"{each.parts_ms[part]:.1f}" for part in used))
            for each in found
        ],
        draw=lambda canvas: _draw(canvas, found, used),
        height_in=1.7 + 0.36 * len(found),
    )


def _most(each: Stack) -> str:
    most = max(STACK, key=lambda part: each.parts_ms[part])
    share = each.parts_ms[most] / each.ttft_ms if each.ttft_ms else 0.0
    return f"{each.name}: {each.ttft_ms:.0f} ms, most of it {NAMES[most]} ({percent(share, 0)})"


def _draw(canvas: Canvas, found: Sequence[Stack], used: Sequence[str]) -> None:
    axes = canvas.subplots()
    places = range(len(found))
    lefts = [0.0] * len(found)
    for at, part in enumerate(used):
        widths = [max(0.0, each.parts_ms[part]) for each in found]
        axes.barh(
            places, widths, left=lefts, height=0.62, facecolor=SERIES[at % len(SERIES)], edgecolor=INK, linewidth=0.5,
            hatch=HATCHES[at % len(HATCHES)], label=NAMES[part], alpha=0.75,
        )  # fmt: skip
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.plot([each.ttft_ms for each in found], places, "D", color=INK, markersize=6, label="TTFT", linestyle="none")
    axes.set_yticks(places, [each.name for each in found])
    axes.set_xlabel("ms")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    canvas.legend(**LEGEND)
