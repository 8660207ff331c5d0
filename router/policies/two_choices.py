"""The power of two choices: of two pods drawn at random the one with fewer requests.

Needs to know two loads only, keeps nobody crowded for long, and routers that do not know of one another do not all run
to the same idle pod. Pure: chance comes as a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagewire.router.policies.explained import explained
from pagewire.router.policies.placement import MAX_CANDIDATES, Option, Placement, placement
from pagewire.router.policies.view import Demand, PodView


class TwoChoices:
    """`draw(n)` returns a number from 0 to n - 1, each as likely as the others."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the better of two decode pods, and of two prefill pods, behind which others stand in."""
        drawn = self._two(decode)
        chosen = min(drawn, key=lambda pod: (not demand.fits(pod), pod.busy, pod.pod_id))
        builders: list[PodView] = []
        if prefill:
            pair = self._two(prefill)
            builders = sorted(pair, key=lambda pod: (pod.queue_s, pod.busy, pod.pod_id))
            start = self._draw(len(prefill))
            others = (prefill[(start + each) % len(prefill)] for each in range(min(len(prefill), MAX_CANDIDATES)))
            builders += [pod for pod in others if pod not in pair]
        names = {pod.pod_id for pod in (*drawn, *builders[:2])}

        def why_not(other: Option, ours: Option) -> str:
            name = other.decode if other.decode != ours.decode else other.prefill
            return "it has more to do than the other one that was drawn" if name in names else "it was not drawn"

        return placement(
            demand, chosen, builders, options=explained(demand, decode, prefill, chosen, builders, why_not)
        )

    def _two(self, pods: Sequence[PodView]) -> list[PodView]:
        """Draw two different pods, or the one there is."""
        if len(pods) == 1:
            return [pods[0]]
        one = self._draw(len(pods))
        other = self._draw(len(pods) - 1)
        return [pods[one], pods[other + (other >= one)]]
