"""A placement with what stood beside it: the chosen option, then those that differ from it in one pod. Pure.

That shows every pod once, with what the request would have come to there, and is linear in their number. At most
MAX_OPTIONS come back, the soonest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pagewire.router.policies.arithmetic import predict
from pagewire.router.policies.placement import Option
from pagewire.router.policies.view import Demand, PodView

MAX_OPTIONS = 16

WhyNot = Callable[[Option, Option], str]
"""Says of an option, beside the chosen one, why it was not taken."""


def option(demand: Demand, decode: PodView, prefill: PodView | None) -> Option:
    """Return one option as it would be explained."""
    return Option(
        decode=decode.pod_id,
        decode_role=decode.role.value,
        prefill="" if prefill is None else prefill.pod_id,
        cached_tokens=demand.cached.get((prefill or decode).pod_id, 0),
        decode_cached_tokens=demand.cached.get(decode.pod_id, 0),
        prediction=predict(demand, decode, prefill),
    )


def explained(
    demand: Demand,
    decode: Sequence[PodView],
    prefill: Sequence[PodView],
    chosen: PodView,
    builders: Sequence[PodView],
    why_not: WhyNot,
) -> tuple[Option, ...]:
    """Return the options around a choice, nothing where the demand does not want them."""
    if not demand.explain:
        return ()
    builder = builders[0] if builders else None
    ours = option(demand, chosen, builder)
    others = [option(demand, pod, builder) for pod in decode if pod is not chosen]
    others += [option(demand, chosen, pod) for pod in prefill if pod is not builder]
    if builder is not None:
        others.append(option(demand, chosen, None))
    others.sort(key=lambda each: (each.prediction.ttft_s, each.prediction.tpot_s, each.decode, each.prefill))
    return ours, *(replace(each, reason=why_not(each, ours)) for each in others[: MAX_OPTIONS - 1])
