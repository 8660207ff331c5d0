"""Where the time to the first token and the time per token go in a simulated cluster, in the mean.

TTFT is told by the moments of each request. TPOT is told by the law of steps at the mean batch: what a step takes for
one sequence alone, what the others in the batch add, what the first wait for KV adds behind the first token; what is
left are prompts that are built in the same steps, and waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from pagewire.slo.figures.statistics import percentile
from pagewire.slo.planning.judge import Whole
from pagewire.slo.simulation.request import SimRequest

QUEUE, COMPUTE = "prompt waits", "prompt is built"
HERE = "prompt waits and is built"
ROOM, REST = "waits for KV memory", "router and frames"
ASKING = 2  # frames: a pod's front asks its engine for room, and hears
ALONE, BATCH, TRANSFER, BESIDE = "a step alone", "others in the batch", "KV on its way", "prompts beside, waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One of TTFT and TPOT, in seconds: its mean by parts, and the percentile at the target."""

    bound_s: float | None
    mean_s: float
    at_target_s: float
    attained: float
    parts_s: dict[str, float]

    @property
    def largest(self) -> str:
        """The part that takes most."""
        return max(self.parts_s, key=self.parts_s.__getitem__)

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object, in milliseconds."""
        return {
            "slo_ms": self.bound_s and 1e3 * self.bound_s,
            "mean_ms": 1e3 * self.mean_s,
            "at_target_ms": 1e3 * self.at_target_s,
            "attained": self.attained,
            "parts_ms": {name: 1e3 * part_s for name, part_s in self.parts_s.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Both; None where no request has it."""

    ttft: Measure | None
    tpot: Measure | None

    @property
    def measures(self) -> dict[str, Measure]:
        """Those that are there, by name."""
        return {name: each for name, each in (("ttft", self.ttft), ("tpot", self.tpot)) if each is not None}

    def missed(self, target: float) -> str | None:
        """Return the measure with a bound that most requests missed, None where each bound was met by `target`."""
        short = {name: each.attained for name, each in self.measures.items() if each.bound_s and each.attained < target}
        return min(short, key=short.__getitem__) if short else None


def spending(whole: Whole, target: float) -> Spending:
    """Return where the time went of the requests of the window that were answered."""
    window = whole.summary.window
    requests = [each for each in whole.requests if not each.error and each.tokens_s and window.holds(each.due_s)]
    longer = [each for each in requests if len(each.tokens_s) > 1]
    ttft, tpot = None, None
    if requests:
        parts = partial(_ttft_parts, asking_s=ASKING * whole.candidate.family.costs.frame_s)
        ttft = _measure(whole, "ttft", target, [_ttft_s(each) for each in requests], _means(requests, parts))
    if longer:
        seconds = [_tpot_s(each) for each in longer]
        tpot = _measure(whole, "tpot", target, seconds, _tpot_parts(whole, longer, fmean(seconds)))
    return Spending(ttft=ttft, tpot=tpot)


def _measure(whole: Whole, name: str, target: float, seconds: list[float], parts_s: dict[str, float]) -> Measure:
    attained = whole.summary.attained.get(name)
    return Measure(
        bound_s=whole.summary.objectives.bounds_s.get(name),
        mean_s=fmean(seconds),
        at_target_s=percentile(sorted(seconds), 100 * target),
        attained=1.0 if attained is None else attained.share,
        parts_s={part: part_s for part, part_s in parts_s.items() if part_s > 1e-9},
    )


def _ttft_s(request: SimRequest) -> float:
    return request.tokens_s[0] - request.due_s


def _tpot_s(request: SimRequest) -> float:
    return (request.tokens_s[-1] - request.tokens_s[0]) / (len(request.tokens_s) - 1)


def _means(requests: Iterable[SimRequest], parts: Callable[[SimRequest], dict[str, float]]) -> dict[str, float]:
    found = [parts(each) for each in requests]
    return {name: fmean(each[name] for each in found) for name in found[0]}


def _ttft_parts(request: SimRequest, asking_s: float) -> dict[str, float]:
    """Return seconds by part; of what passes until there is room, `asking_s` is on its way, and nobody waits."""
    parts = dict.fromkeys((ROOM, QUEUE, COMPUTE, HERE), 0.0)
    parts[ROOM] = request.submitted_s - request.looked_up_s  # the router keeps who fits on no pod
    if request.reserved_s is not None:  # a prompt whose only token is sampled elsewhere asks for no room here
        parts[ROOM] += max(0.0, request.reserved_s - request.accepted_s - asking_s)
    if request.prefill_pod and request.prefill_begun_s is not None:
        parts[QUEUE] = request.prefill_begun_s - request.run_received_s
        parts[COMPUTE] = request.prefilled_s - request.prefill_begun_s
    elif request.first_step_s is not None and request.reserved_s is not None:
        parts[HERE] = request.first_step_s - request.reserved_s
    return parts | {REST: _ttft_s(request) - sum(parts.values())}


def _tpot_parts(whole: Whole, requests: list[SimRequest], mean_s: float) -> dict[str, float]:
    candidate = whole.candidate
    law = candidate.family.costs.decode
    begin_s = min(each.tokens_s[0] for each in requests)
    span_s = max(each.tokens_s[-1] for each in requests) - begin_s
    decoding_s = sum(each.tokens_s[-1] - each.tokens_s[0] for each in requests)
    batch = max(1.0, decoding_s / (span_s * candidate.decode))
    context = fmean(len(each.asked.prompt) + len(each.tokens_s) / 2 for each in requests)
    alone_s = min(mean_s, law.decode_seconds(1, round(context)))
    way_s = fmean(_way_s(each) / (len(each.tokens_s) - 1) for each in requests)
    batch_s = law.decode_seconds(round(batch), round(batch * context)) - alone_s
    batch_s = min(max(0.0, batch_s), mean_s - alone_s)
    way_s = min(way_s, mean_s - alone_s - batch_s)
    return {ALONE: alone_s, BATCH: batch_s, TRANSFER: way_s, BESIDE: mean_s - alone_s - batch_s - way_s}


def _way_s(request: SimRequest) -> float:
    """Return how long the second token waited for the prompt's KV, with the step that it joined."""
    if not request.prefill_pod or request.first_step_s is None or request.first_received_s is None:
        return 0.0
    return max(0.0, request.first_step_s - request.first_received_s)
