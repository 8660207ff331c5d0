"""The least predicted cost: prompts go where their prefix is cached, unless the queue there costs more.

    prefill   queue + tokens that are not cached x c
    decode    requests there x step + the prompt's KV, computed there or brought there (x 0.1 c)

A cost is a rank and not a time: `arithmetic.py` has the times. Limits keep a popular prefix from crowding its holder: a
pod is passed over when it has `threshold` requests more than the one that has the fewest, and `ratio` times as many.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.router.policies.balance import costs_with_room, first, in_order
from pagewire.router.policies.explained import explained
from pagewire.router.policies.placement import MAX_CANDIDATES, Option, Placement, placement
from pagewire.router.policies.view import SHIP_SHARE, Demand, PodView

CROWDED_S = 1e6  # added to the cost of a pod beyond the limits


class PrefixAffinity:
    """`threshold` in requests; `ratio` over the least loaded pod."""

    def __init__(self, *, threshold: int = 16, ratio: float = 1.5) -> None:
        if threshold < 0 or ratio < 1:
            raise ValueError(f"balance limits of {threshold} requests and {ratio} times the least make no sense")
        self._threshold = threshold
        self._ratio = ratio

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the cheapest decode pod with room, and the prefill pods that would be done first."""
        decode_costs = costs_with_room(demand, decode, self._balanced(decode, _decode_costs(demand, decode, prefill)))
        prefill_costs = self._balanced(prefill, _prefill_costs(demand, prefill))
        chosen = first(decode, decode_costs)
        builders = in_order(prefill, prefill_costs, MAX_CANDIDATES)
        costs: dict[str, float] = {}
        if demand.explain:
            costs = {pod.pod_id: cost for pod, cost in zip(decode, decode_costs, strict=True)}
            costs |= {pod.pod_id: cost for pod, cost in zip(prefill, prefill_costs, strict=True)}

        def why_not(other: Option, ours: Option) -> str:
            if other.decode != ours.decode:
                return _compared(costs[other.decode], costs[ours.decode])
            if not other.prefill:
                return "prompts go to prefill pods, or the decode pod compares"
            return _compared(costs[other.prefill], costs[ours.prefill])

        return placement(
            demand, chosen, builders, options=explained(demand, decode, prefill, chosen, builders, why_not)
        )

    def _balanced(self, pods: Sequence[PodView], costs: list[float]) -> list[float]:
        """Return `costs`, raised for pods that have too many requests beside the least loaded one."""
        if not pods:
            return costs
        least = min([pod.busy for pod in pods])
        limit = max(least + self._threshold, least * self._ratio)
        return [cost + CROWDED_S if pod.busy > limit else cost for pod, cost in zip(pods, costs, strict=True)]


def _decode_costs(demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> list[float]:
    tokens = demand.num_tokens
    if prefill:
        costs = [pod.busy * pod.step_s + tokens * SHIP_SHARE * pod.token_s for pod in decode]
        share = SHIP_SHARE
    else:
        costs = [pod.busy * pod.step_s + pod.queue_s + tokens * pod.token_s for pod in decode]
        share = 1.0
    return _less_cached(demand, decode, costs, share)


def _prefill_costs(demand: Demand, prefill: Sequence[PodView]) -> list[float]:
    tokens = demand.num_tokens
    return _less_cached(demand, prefill, [pod.queue_s + tokens * pod.token_s for pod in prefill], 1.0)


def _less_cached(demand: Demand, pods: Sequence[PodView], costs: list[float], share: float) -> list[float]:
    """Return `costs` less what is cached, of which a part may have to come out of host memory."""
    if not demand.cached:
        return costs
    cached, on_host = demand.cached, demand.on_host
    return [
        cost
        if pod.pod_id not in cached
        else cost - (share * cached[pod.pod_id] - SHIP_SHARE * on_host.get(pod.pod_id, 0)) * pod.token_s
        for pod, cost in zip(pods, costs, strict=True)
    ]


def _compared(theirs: float, ours: float) -> str:
    if theirs - ours >= CROWDED_S * 100:
        return "it has no room now"
    if theirs - ours >= CROWDED_S / 2:
        return "it has too many requests beside the least loaded one"
    return f"its cost is {theirs:.4f} s, the chosen one's {ours:.4f} s"
