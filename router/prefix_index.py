"""Which hashes of a chain to look up, and what the answers say about who holds how much of it.

Pure: the answers come from Redis through `serving/block_index.py`, and are a hint, never the truth. What a pod holds of
a chain is a prefix of it, so probing some depths suffices. Only blocks whose depth is indexed have a key, and a lookup
reads at most MAX_PROBES keys in one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash, is_indexed, max_hit_blocks

MAX_PROBES = 128

Members = Sequence[bytes]  # of one key


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One key to read: the hash of the chain's block at `depth`, counted from 0."""

    depth: int
    block_hash: BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the index says: pod id -> cached tokens, and the entries under names that no linked pod goes by.

    `on_host` are those of `tokens` that are not in the pod's pool but in its host memory.
    """

    tokens: Mapping[str, int]
    on_host: Mapping[str, int]
    unknown: tuple[tuple[BlockHash, bytes], ...] = ()


def probes(hashes: Sequence[BlockHash]) -> list[Probe]:
    """Return the keys worth reading for the chain of a prompt, shallow to deep, spread evenly over a long one.

    A block that holds the last token is never served whole, but its key also vouches for all blocks before it.
    """
    depths = [depth for depth in range(len(hashes)) if is_indexed(depth)]
    if len(depths) > MAX_PROBES:
        last = len(depths) - 1
        depths = [depths[round(i * last / (MAX_PROBES - 1))] for i in range(MAX_PROBES)]
    return [Probe(depth=depth, block_hash=hashes[depth]) for depth in depths]


def held(
    asked: Sequence[Probe],
    answers: Sequence[Members],
    live: Mapping[bytes, tuple[str, int]],
    num_tokens: int,
    block_size: int,
) -> Held:
    """Turn answers into cached tokens per pod. `live` maps what linked pods go by to pod id and tier."""
    limit = max_hit_blocks(num_tokens, block_size) * block_size
    tokens: dict[str, int] = {}
    in_pool: dict[str, int] = {}
    unknown: list[tuple[BlockHash, bytes]] = []
    holders: dict[str, int] = {}  # pod id -> tier, of who holds all blocks so far
    odd: list[bytes] = []
    before: Members | None = None
    covered = 0
    for probe, members in zip(asked, answers, strict=True):
        if members != before:  # neighbours mostly have the same holders
            _settle(holders, covered, tokens, in_pool)
            found, odd = _known(members, live)
            # What is held is a prefix: a pod that misses a shallow block does not hold the deep ones.
            holders = found if before is None else {each: tier for each, tier in found.items() if each in holders}
            before = members
        unknown += [(probe.block_hash, name) for name in odd]
        covered = min((probe.depth + 1) * block_size, limit)
    _settle(holders, covered, tokens, in_pool)
    on_host = {pod_id: count - in_pool.get(pod_id, 0) for pod_id, count in tokens.items()}
    return Held(tokens=tokens, on_host=on_host, unknown=tuple(unknown))


def _settle(holders: Mapping[str, int], covered: int, tokens: dict[str, int], in_pool: dict[str, int]) -> None:
    tokens.update(dict.fromkeys(holders, covered))
    in_pool.update((pod_id, covered) for pod_id, tier in holders.items() if tier == 0)


def _known(members: Members, live: Mapping[bytes, tuple[str, int]]) -> tuple[dict[str, int], list[bytes]]:
    """Return the pods behind names with the best tier of each, and the names that no linked pod goes by."""
    found: dict[str, int] = {}
    odd = []
    for name in members:
        holder = live.get(name)
        if holder is None:
            odd.append(name)
        else:
            pod_id, tier = holder
            found[pod_id] = min(tier, found.get(pod_id, tier))
    return found, odd
