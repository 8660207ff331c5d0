"""A cost model from what was seen of real pods: laws fitted to moments, with what is left unexplained. Pure.

Each observation is of an otherwise idle cluster. Invariant: what was never seen is not made up: a law that cannot be
fitted is a ValueError that says what is missing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagewire.slo.costs.cost_model import CostModel, LinkLaw, SharingLaw, StepKind, StepLaw, StepLine
from pagewire.slo.costs.fit import Fit, fit

FRAMES_TO_FIRST_TOKEN = 7  # as the simulator counts them: router, pod, its engine and back, and the way to the caller
LEAST_BYTE_S = 1e-12  # what is left of a byte whose time nobody could see
LEAST_SEEN = 4  # observations that a law is fitted to


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSeen:
    """A prompt of `tokens` that was computed alone, in `steps` steps, within `compute_s`.

    `intake_s` passed in the router before a pod had it, `ttft_s` until the caller had the first token. `num_bytes` of
    KV were on their way for `transfer_s`, chunk by chunk; 0 where nothing travelled.
    """

    tokens: int
    steps: int
    compute_s: float
    intake_s: float
    ttft_s: float
    num_bytes: int = 0
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSeen:
    """Steps of `batch` sequences with `context` tokens each took `step_s` in the mean."""

    batch: int
    context: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideSeen:
    """A step took `alone_s`, and `beside_s` while another pod computed steps of kind `other`, `overlap` of the time.

    Both are means over the same time: what chance did to one of their steps it did to the others as well.
    """

    mine: StepKind
    other: StepKind
    alone_s: float
    beside_s: float
    overlap: float = 1.0


@dataclass(slots=True, kw_only=True)
class Seen:
    """All that was seen of a cluster. `spreads` are deviations of the logarithm of equal steps' times."""

    prompts: list[PromptSeen] = field(default_factory=list)
    decodes: list[DecodeSeen] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)
    beside: list[BesideSeen] = field(default_factory=list)


def calibrated(seen: Seen, *, token_bytes: int, about: Mapping[str, Any]) -> CostModel:
    """Return the cost model that fits best what was seen; raises ValueError where that is too little."""
    for name, each in (("prompts", seen.prompts), ("batches", seen.decodes)):
        if len(each) < LEAST_SEEN:
            raise ValueError(f"{len(each)} {name} were seen: a law takes {LEAST_SEEN}")
    prefill = fit(
        [(p.steps, p.tokens, p.tokens * (p.tokens + 1) / 2) for p in seen.prompts], [p.compute_s for p in seen.prompts]
    )
    decode = fit([(1, d.batch, d.batch * d.context) for d in seen.decodes], [d.step_s for d in seen.decodes])
    intake = fit([(1, p.tokens) for p in seen.prompts], [p.intake_s for p in seen.prompts])
    step_s, token_s, pair_s = prefill.coefficients
    rest_s = statistics.median(p.ttft_s - p.intake_s - p.compute_s for p in seen.prompts)
    residuals = {name: _told(each) for name, each in (("prefill", prefill), ("decode", decode), ("intake", intake))}
    link, link_fit = _link(seen.prompts)
    if link_fit is not None:
        residuals["link"] = _told(link_fit)
    decode_line = StepLine(
        step_s=decode.coefficients[0],
        prefill_token_s=token_s,
        decode_s=decode.coefficients[1],
        prefill_pair_s=pair_s,
        decode_pair_s=decode.coefficients[2],
    )
    return CostModel(
        prefill=StepLaw(lines=(StepLine(step_s=step_s, prefill_token_s=token_s, prefill_pair_s=pair_s),)),
        decode=StepLaw(lines=(decode_line,)),
        token_bytes=token_bytes,
        link=link,
        sharing=_sharing(seen.beside),
        frame_s=max(0.0, rest_s) / FRAMES_TO_FIRST_TOKEN,
        intake_s=intake.coefficients[0],
        intake_token_s=intake.coefficients[1],
        noise=statistics.median(seen.spreads) if seen.spreads else 0.0,
        about=about,
        residuals=residuals,
    )


def _link(prompts: Sequence[PromptSeen]) -> tuple[LinkLaw, Fit | None]:
    shipped = [p for p in prompts if p.num_bytes]
    if len(shipped) < LEAST_SEEN:
        return LinkLaw(), None
    found = fit([(p.steps, p.num_bytes) for p in shipped], [p.transfer_s for p in shipped])
    latency_s, byte_s = found.coefficients
    return LinkLaw(latency_s=latency_s, bytes_per_s=1 / max(byte_s, LEAST_BYTE_S)), found


def _sharing(seen: Sequence[BesideSeen]) -> SharingLaw:
    """Return the factors that were seen; 1.0 where nothing was, or no more than chance makes of nothing."""
    factors: dict[str, float] = {}
    for mine in StepKind:
        for other in StepKind:
            added = [
                (each.beside_s / each.alone_s - 1) / each.overlap
                for each in seen
                if (each.mine, each.other) == (mine, other) and each.overlap > 0
            ]
            if len(added) > 1:
                mean = statistics.mean(added)
                chance = statistics.stdev(added) / math.sqrt(len(added))
                factors[f"{mine.value}_beside_{other.value}"] = 1 + mean if mean > 2 * chance else 1.0
    return SharingLaw(**factors)


def _told(found: Fit) -> dict[str, float]:
    return {"rms_s": found.rms, "largest_s": found.largest, "mean_relative": found.relative}
