"""Which pods may be chosen at all, and the first among those that may: what several policies do alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.router.policies.view import Demand, PodView

FULL_S = 1e9  # added to the cost of a pod without room: it comes after all others, and before nobody


def costs_with_room(demand: Demand, pods: Sequence[PodView], costs: Sequence[float]) -> list[float]:
    """Return `costs`, raised beyond all others for pods on which the demand surely does not fit now."""
    # Nobody needs more than a pod that holds nothing: most pods are seen to have room without their name looked up.
    most = -(-demand.num_tokens // demand.block_size) + demand.num_sequences
    return [
        cost if pod.spare_blocks >= most or demand.fits(pod) else cost + FULL_S
        for pod, cost in zip(pods, costs, strict=True)
    ]


def first(pods: Sequence[PodView], costs: Sequence[float]) -> PodView:
    """Return the pod of the least cost; of several the one with the fewest requests, then by its id."""
    least = min(costs)
    ties = [pod for pod, cost in zip(pods, costs, strict=True) if cost == least]
    return min(ties, key=lambda pod: (pod.busy, pod.pod_id))


def in_order(pods: Sequence[PodView], costs: Sequence[float], count: int) -> list[PodView]:
    """Return the `count` pods of the least costs, ties by id, the least first."""
    if not pods:
        return []
    bound = sorted(costs)[min(count, len(costs)) - 1]
    near = [(cost, pod.pod_id, pod) for pod, cost in zip(pods, costs, strict=True) if cost <= bound]
    near.sort(key=lambda each: each[:2])
    return [pod for _, _, pod in near[:count]]
