"""The fewest requests, and the shortest prefill queue; what is cached plays no part."""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.router.policies.balance import costs_with_room, first, in_order
from pagewire.router.policies.explained import explained
from pagewire.router.policies.placement import MAX_CANDIDATES, Option, Placement, placement
from pagewire.router.policies.view import Demand, PodView

# A second of queue outweighs any number of requests, which only part pods with equal queues.
REQUEST_S = 1e-9


class LeastLoaded:
    """Keeps nothing."""

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the decode pod with the fewest requests that has room, and the prefill pods by their queues."""
        crowds = costs_with_room(demand, decode, [float(pod.busy) for pod in decode])
        least = min(crowds)
        ties = [pod for pod, crowd in zip(decode, crowds, strict=True) if crowd == least]
        chosen = first(ties, [pod.queue_s for pod in ties])
        builders = in_order(prefill, [pod.queue_s + pod.busy * REQUEST_S for pod in prefill], MAX_CANDIDATES)
        load = {pod.pod_id: pod for pod in (*decode, *prefill)} if demand.explain else {}

        def why_not(other: Option, ours: Option) -> str:
            if other.decode != ours.decode:
                theirs, here = load[other.decode], load[ours.decode]
                if not demand.fits(theirs):
                    return "it has no room now"
                return f"it has {theirs.busy} requests, the chosen one {here.busy}"
            return f"its queue is {load[other.prefill or other.decode].queue_s:.4f} s"

        return placement(
            demand, chosen, builders, options=explained(demand, decode, prefill, chosen, builders, why_not)
        )
