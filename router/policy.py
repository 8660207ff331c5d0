"""Placement: which decode pod takes a request, and which prefill pods may build its prompt.

Pure: sees pods as values and returns a choice; does no I/O and reads no clock. Costs are predicted seconds, from what
pods measured of themselves; the pod's own cache and room decide in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.load import Load
from pagewire.core.messages import Candidate, Role

MAX_CANDIDATES = 3
# Stand-ins until a pod has measured itself; only their ratio matters, since they are compared with one another.
PREFILL_S_PER_TOKEN = 1e-4
STEP_S = 0.02
# Moving a token's KV costs about a tenth of computing it.
SHIP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A linked pod as a policy sees it.

    `in_flight` counts this router's requests there, `pending_tokens` the prompt tokens of those that have no first
    token yet, `cached_tokens` what the index says it holds of this prompt, `host_tokens` those of them that are in its
    host memory and have to be brought into its pool.
    """

    pod_id: str
    address: str
    role: Role
    load: Load
    in_flight: int = 0
    pending_tokens: int = 0
    cached_tokens: int = 0
    host_tokens: int = 0

    @property
    def busy(self) -> int:
        """Requests on the pod; its own word may be a heartbeat old, ours lacks other routers'."""
        return max(self.load.num_running + self.load.num_waiting, self.in_flight)

    @property
    def queue_s(self) -> float:
        """Predicted seconds until a prompt that comes now is started."""
        return max(self.load.waiting_tokens, self.pending_tokens) * self._token_s

    def prefill_s(self, num_tokens: int) -> float:
        """Predicted seconds until a prompt of `num_tokens` that comes now is done."""
        return self.queue_s + (max(0, num_tokens - self.cached_tokens) + self._to_bring_up) * self._token_s

    def decode_s(self, num_tokens: int, *, is_local: bool) -> float:
        """Predicted cost of decoding here: the crowd, and the prompt's KV, computed here or brought here."""
        crowd_s = self.busy * (self.load.step_s or STEP_S)
        if is_local:
            return crowd_s + self.prefill_s(num_tokens)
        shipped = max(0, num_tokens - self.cached_tokens) * SHIP_SHARE
        return crowd_s + (shipped + self._to_bring_up) * self._token_s

    def has_room(self, demand: Demand) -> bool:
        """False when the prompt's KV, and a block for each sequence behind it, surely do not fit now."""
        needed = -(-max(0, demand.num_tokens - self.cached_tokens) // demand.block_size) + demand.num_sequences
        spare = self.load.blocks_free + self.load.blocks_cached - self.load.blocks_reserved
        return self.load.blocks_total == 0 or spare >= needed

    @property
    def _to_bring_up(self) -> float:
        """What copying out of host memory costs, in computed tokens."""
        return self.host_tokens * SHIP_SHARE

    @property
    def _token_s(self) -> float:
        return self.load.prefill_s_per_token or PREFILL_S_PER_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What has to be placed."""

    num_tokens: int
    block_size: int
    num_sequences: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The choice. Without candidates the decode pod prefills. `cached_tokens` is what the prompt should find cached."""

    decode: str
    candidates: tuple[Candidate, ...] = ()
    cached_tokens: int = 0


class Policy(Protocol):
    """Chooses pods. `decode` is never empty; `prefill` is, where prompts are to be prefilled locally."""

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the placement of one request."""
        ...


class PrefixAffinity:
    """The least predicted cost: prompts go where their prefix is cached, unless the queue there costs more."""

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the cheapest decode pod with room, and the prefill pods that would be done first."""

        def cost(pod: PodView) -> tuple[bool, float, int, str]:
            seconds = pod.decode_s(demand.num_tokens, is_local=not prefill)
            return not pod.has_room(demand), seconds, pod.busy, pod.pod_id

        return _placement(
            min(decode, key=cost), sorted(prefill, key=lambda pod: (pod.prefill_s(demand.num_tokens), pod.pod_id))
        )


class LeastLoaded:
    """The fewest requests, and the shortest prefill queue; what is cached plays no part."""

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the decode pod with the fewest requests that has room, and the prefill pods by their queues."""

        def crowd(pod: PodView) -> tuple[bool, int, float, str]:
            return not pod.has_room(demand), pod.busy, pod.queue_s, pod.pod_id

        return _placement(min(decode, key=crowd), sorted(prefill, key=lambda pod: (pod.queue_s, pod.busy, pod.pod_id)))


class RoundRobin:
    """Every pod in turn."""

    def __init__(self) -> None:
        self._turn = -1

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the next decode pod, and the prefill pods from the next one on."""
        self._turn += 1
        ordered = sorted(decode, key=lambda pod: pod.pod_id)
        candidates = sorted(prefill, key=lambda pod: pod.pod_id)
        start = self._turn % len(candidates) if candidates else 0
        return _placement(ordered[self._turn % len(ordered)], candidates[start:] + candidates[:start])


def _placement(decode: PodView, prefill: Sequence[PodView]) -> Placement:
    chosen = prefill[:MAX_CANDIDATES]
    return Placement(
        decode=decode.pod_id,
        candidates=tuple(
            Candidate(pod_id=pod.pod_id, address=pod.address, queue_s=pod.queue_s, cached_tokens=pod.cached_tokens)
            for pod in chosen
        ),
        cached_tokens=chosen[0].cached_tokens if chosen else decode.cached_tokens,
    )
