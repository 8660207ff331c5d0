"""Every pod in turn."""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.router.policies.explained import explained
from pagewire.router.policies.placement import MAX_CANDIDATES, Option, Placement, placement
from pagewire.router.policies.view import Demand, PodView


class RoundRobin:
    """Knows whose turn it is, and nothing of loads."""

    def __init__(self) -> None:
        self._turn = -1

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the next decode pod, and the prefill pods from the next one on."""
        self._turn += 1
        chosen = decode[self._turn % len(decode)]
        count = min(MAX_CANDIDATES, len(prefill))
        builders = [prefill[(self._turn + each) % len(prefill)] for each in range(count)]
        return placement(
            demand, chosen, builders, options=explained(demand, decode, prefill, chosen, builders, _why_not)
        )


def _why_not(_other: Option, _chosen: Option) -> str:
    return "it was not its turn"
