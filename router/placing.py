"""Finds pods for a request: its hash chain, what the index says of it, the policy's choice among the pods in reach.

Knows nothing of tokens that come back. The index is asked once per request and bounded in time; without an answer the
placement follows from loads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.block_hash import BlockHash, chain, root_hash
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Role, Source
from pagewire.router.config import PrefillMode
from pagewire.router.pods import DECODES, Pod, PodPool
from pagewire.router.policy import Demand, Placement, PodView, Policy
from pagewire.router.prefix_index import held, probes
from pagewire.router.request import Request

MAX_SOURCES = 3  # pods that are named as holders of a prompt's beginning
MAX_STALE = 256  # entries that wait to be swept; what does not fit is met again


class Index(Protocol):
    """The prefix index in Redis, which never raises."""

    async def lookup(self, hashes: list[BlockHash]) -> list[set[str]]:
        """Return the members of each hash's key, empty sets when it takes too long."""
        ...

    async def sweep(self, entries: list[tuple[BlockHash, str]]) -> None:
        """Take entries of dead incarnations out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A prompt as the index knows it: where its chain starts, pod id -> cached tokens, those of them in host memory.

    `fingerprint` is what it was hashed for: only pods that serve just that may ever have the request.
    """

    root: BlockHash
    cached: Mapping[str, int]
    on_host: Mapping[str, int]
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placement with the pods behind its names; `prefill` is the first candidate, where the prompt should go.

    `sources` are other pods that hold a beginning of the prompt, as the index says, the longest first.
    """

    placement: Placement
    decode: Pod
    prefill: Pod | None
    key: str  # of the decode pod's link when it was chosen
    sources: tuple[Source, ...] = ()

    def decode_as_source(self, num_tokens: int) -> Source:
        """Return the decode pod as one to fetch `num_tokens` from."""
        return Source(pod_id=self.decode.pod_id, address=self.decode.registration.address, num_tokens=num_tokens)

    def prefill_begins(self, num_tokens: int) -> None:
        """Count a prompt on the pod that should prefill it, until its first token."""
        pod = self.prefill or self.decode
        pod.pending_tokens += num_tokens
        pod.prefills += self.prefill is not None

    def prefill_is_over(self, num_tokens: int) -> None:
        """Take the count back."""
        pod = self.prefill or self.decode
        pod.pending_tokens -= num_tokens
        pod.prefills -= self.prefill is not None


class Placer:
    """Chooses pods for requests."""

    def __init__(self, pool: PodPool, index: Index, policy: Policy, *, mode: PrefillMode, secret: bytes) -> None:
        self._pool = pool
        self._index = index
        self._policy = policy
        self._mode = mode
        self._secret = secret
        self._stale: asyncio.Queue[tuple[BlockHash, str]] = asyncio.Queue(MAX_STALE)

    async def run(self) -> None:
        """Sweep stale entries out of the index, beside the requests that met them, until cancelled."""
        while True:
            entries = [await self._stale.get()]
            while not self._stale.empty():
                entries.append(self._stale.get_nowait())
            await self._index.sweep(entries)

    async def look_up(self, request: Request, fingerprint: Fingerprint) -> Prefix:
        """Ask the index who holds how much of the prompt."""
        root = root_hash(
            model_digest=fingerprint.model_digest,
            kv_fingerprint=fingerprint.kv_fingerprint,
            salt=request.cache_salt,
            key=self._secret,
        )
        block_size, num_tokens = fingerprint.block_size, len(request.prompt)
        asked = probes(chain(root, request.prompt, block_size), num_tokens, block_size)
        answers = await self._index.lookup([probe.block_hash for probe in asked])
        found = held(asked, answers, self._pool.incarnations(), num_tokens, block_size)
        for entry in found.stale[: MAX_STALE - self._stale.qsize()]:
            self._stale.put_nowait(entry)
        return Prefix(root=root, cached=found.tokens, on_host=found.on_host, fingerprint=fingerprint)

    def place(self, request: Request, prefix: Prefix, avoid: Set[str]) -> Placed | None:
        """Return pods for the request, None when no decode pod is in reach; `avoid` holds the keys that failed it."""
        decode = {pod.pod_id: pod for pod in self._fitting(prefix, *DECODES) if pod.key not in avoid}
        if not decode:
            return None
        prefill: dict[str, Pod] = {}
        # A search needs the prompt's logits where it decodes.
        if self._mode is not PrefillMode.LOCAL and not request.sampling.use_beam_search:
            prefill = {pod.pod_id: pod for pod in self._fitting(prefix, Role.PREFILL)}
        placement = self._policy.place(
            Demand(
                num_tokens=len(request.prompt),
                block_size=prefix.fingerprint.block_size,
                num_sequences=request.sampling.num_sequences,
            ),
            [_view(pod, prefix) for pod in decode.values()],
            [_view(pod, prefix) for pod in prefill.values()],
        )
        first = prefill.get(placement.candidates[0].pod_id) if placement.candidates else None
        chosen = decode[placement.decode]
        return Placed(
            placement=placement, decode=chosen, prefill=first, key=chosen.key, sources=self._sources(prefix, chosen)
        )

    def _sources(self, prefix: Prefix, chosen: Pod) -> tuple[Source, ...]:
        """Return who holds most of the prompt, of whatever role; who drains may still be asked."""
        holders = [pod for pod in self._pool.pods if pod.link is not None and not pod.misfit and pod is not chosen]
        holding = [(prefix.cached.get(pod.pod_id, 0), pod.pod_id, pod.registration.address) for pod in holders]
        longest = sorted((each for each in holding if each[0] > 0), key=lambda each: (-each[0], each[1]))
        return tuple(
            Source(pod_id=pod_id, address=address, num_tokens=num_tokens)
            for num_tokens, pod_id, address in longest[:MAX_SOURCES]
        )

    def _fitting(self, prefix: Prefix, *roles: Role) -> list[Pod]:
        return [pod for pod in self._pool.usable(*roles) if pod.registration.fingerprint == prefix.fingerprint]


def _view(pod: Pod, prefix: Prefix) -> PodView:
    return pod.view(prefix.cached.get(pod.pod_id, 0), prefix.on_host.get(pod.pod_id, 0))
