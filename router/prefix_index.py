"""Which hashes of a chain to look up, and what the answers say about who holds how much of it.

Pure: the answers come from Redis through `serving/registry.py`, and are a hint, never the truth. What a pod holds of a
chain is a prefix of it, so probing some depths suffices. Only blocks whose depth is indexed have a key, and a lookup
reads at most MAX_PROBES keys in one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash, is_indexed, max_hit_blocks

MAX_PROBES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One key to read: the hash of the chain's block at `depth`, counted from 0."""

    depth: int
    block_hash: BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the index says: pod id -> cached tokens, and the entries that name an incarnation known to be dead.

    `on_host` are those of `tokens` that are not in the pod's pool but in its host memory.
    """

    tokens: Mapping[str, int]
    on_host: Mapping[str, int]
    stale: tuple[tuple[BlockHash, str], ...] = ()


def probes(hashes: Sequence[BlockHash], num_tokens: int, block_size: int) -> list[Probe]:
    """Return the keys worth reading for a prompt of `num_tokens`, shallow to deep, spread evenly over a long chain."""
    usable = min(len(hashes), max_hit_blocks(num_tokens, block_size))
    # The block that holds the last token is never served whole, but its key also vouches for all blocks before it.
    usable = min(len(hashes), usable + 1) if usable else len(hashes)
    depths = [depth for depth in range(usable) if is_indexed(depth)]
    if len(depths) > MAX_PROBES:
        last = len(depths) - 1
        depths = [depths[round(i * last / (MAX_PROBES - 1))] for i in range(MAX_PROBES)]
    return [Probe(depth=depth, block_hash=hashes[depth]) for depth in depths]


def held(
    asked: Sequence[Probe],
    answers: Sequence[Set[str]],
    live: Mapping[str, str],
    num_tokens: int,
    block_size: int,
) -> Held:
    """Turn answers into cached tokens per pod. `live` maps the linked pods to their incarnations.

    Entries of pods that are not linked say nothing; entries of another incarnation of a linked pod are stale.
    """
    limit = max_hit_blocks(num_tokens, block_size) * block_size
    tokens: dict[str, int] = {}
    in_pool: dict[str, int] = {}
    stale: list[tuple[BlockHash, str]] = []
    still = dict(live)
    for probe, members in zip(asked, answers, strict=True):
        pooled = {pod_id for pod_id, incarnation in still.items() if f"{pod_id}@{incarnation}" in members}
        named = {pod_id for pod_id, incarnation in still.items() if f"{pod_id}@{incarnation}+1" in members} | pooled
        for pod_id in named:
            tokens[pod_id] = min((probe.depth + 1) * block_size, limit)
        in_pool.update((pod_id, tokens[pod_id]) for pod_id in pooled)
        for member in members:
            pod_id, _, where = member.rpartition("@")
            if pod_id in live and live[pod_id] != where.partition("+")[0]:
                stale.append((probe.block_hash, member))
        # What is held is a prefix: a pod that misses a shallow block does not hold the deep ones.
        still = {pod_id: still[pod_id] for pod_id in named}
    on_host = {pod_id: count - in_pool.get(pod_id, 0) for pod_id, count in tokens.items()}
    return Held(tokens=tokens, on_host=on_host, stale=tuple(stale))
