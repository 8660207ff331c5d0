"""Named prefixes that a pod keeps in its pool for good: which blocks they are, and how many there may be.

Knows tokens and numbers; nothing of files or of who computes them. Only whole blocks are kept: the rest of a prefix is
each request's own. Invariant: what is pinned is within its share, and leaves room for one sequence of full length; a
pool smaller than that has no pins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash, chain, root_hash, tenant_salt
from pagewire.core.engine_messages import EngineReady
from pagewire.core.kv_sizing import SPARE_BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPrefix:
    """What many prompts begin with. `salt` is "" for requests without a cache_salt.

    `tenant` is whose requests they are where callers have keys, "" where they have none; `tenant_salt` is the salt that
    the key file gives it, "" where it gives none. `adapter` is the adapter that the requests name, "" for none.
    """

    name: str
    tokens: tuple[int, ...]
    salt: str = ""
    tenant: str = ""
    tenant_salt: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One prefix as whole blocks: `tokens`, computed with `adapter`, fill those of `hashes`, a chain from `root`."""

    name: str
    tokens: tuple[int, ...]
    root: BlockHash
    hashes: tuple[BlockHash, ...]
    adapter: str = ""


def plan(prefixes: Sequence[NamedPrefix], ready: EngineReady, *, key: bytes, share: float) -> tuple[Pin, ...]:
    """Return what to pin; `key` is the cluster's secret. Raises ValueError naming the prefix that cannot be.

    A block that two prefixes begin with is pinned, and counted, once.
    """
    fingerprint, size = ready.fingerprint, ready.layout.block_size
    longest = ready.layout.num_blocks(fingerprint.max_model_len) + SPARE_BLOCKS
    # What passes a window or spills is held whole while it fits, and may need all of the pool.
    if prefixes and longest > ready.num_blocks:
        raise ValueError(
            f"prefixes cannot be pinned beside sequences that are larger than the pool: one of max_model_len "
            f"{fingerprint.max_model_len} takes {longest} blocks, and the pool has {ready.num_blocks}"
        )
    most = min(int(share * ready.num_blocks), ready.num_blocks - longest)
    pins: list[Pin] = []
    pinned: set[BlockHash] = set()
    for prefix in prefixes:
        _check(prefix, ready)
        tokens = prefix.tokens[: len(prefix.tokens) // size * size]
        root = root_hash(
            model_digest=fingerprint.model_digest,
            kv_fingerprint=fingerprint.kv_fingerprint,
            adapter=fingerprint.adapter_digest(prefix.adapter),
            salt=prefix.salt,
            tenant=prefix.tenant_salt or (tenant_salt(prefix.tenant, key) if prefix.tenant else ""),
            key=key,
        )
        hashes = tuple(chain(root, tokens, size))
        pin = Pin(name=prefix.name, tokens=tokens, root=root, hashes=hashes, adapter=prefix.adapter)
        pinned.update(pin.hashes)
        if len(pinned) > most:
            raise ValueError(
                f"prefix {prefix.name!r} takes the pinned blocks to {len(pinned)}; of the pool's {ready.num_blocks}, "
                f"{most} may be: a share of {share}, and room for a sequence of {fingerprint.max_model_len} tokens"
            )
        pins.append(pin)
    return tuple(pins)


def _check(prefix: NamedPrefix, ready: EngineReady) -> None:
    size, longest = ready.layout.block_size, ready.fingerprint.max_model_len - 1
    if prefix.adapter and prefix.adapter not in ready.fingerprint.adapter_names:
        raise ValueError(f"prefix {prefix.name!r} asks for adapter {prefix.adapter[:200]!r}, which is not here")
    if not size <= len(prefix.tokens) <= longest:
        raise ValueError(
            f"prefix {prefix.name!r} has {len(prefix.tokens)} tokens; {size} fill a block, and {longest} may be"
        )
    if not 0 <= min(prefix.tokens) <= max(prefix.tokens) < ready.vocab_size:
        raise ValueError(f"prefix {prefix.name!r} holds a token id that is not between 0 and {ready.vocab_size - 1}")
