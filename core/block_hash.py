"""The chained hash that names a full block of tokens and everything before it.

    root = blake2b_16(key, version | model digest | KV fingerprint | adapter | salt [ | tenant])   each length-prefixed
    h[i] = blake2b_16(h[i-1] | tokens of block i as little-endian uint32)

Equal hashes mean equal prefixes under one model, layout, adapter and tenant. Pure; golden vectors in the tests pin it,
because every process of a cluster must agree on it: HASH_VERSION, which pods and routers compare when they link, is
another whenever a hash is, or the choice of blocks that the index has keys for.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
from array import array
from collections.abc import Sequence
from typing import NewType

BlockHash = NewType("BlockHash", bytes)

HASH_VERSION = 1
HASH_BYTES = 16
INDEX_STRIDE = 8


def root_hash(
    *, model_digest: str, kv_fingerprint: str, adapter: str = "", salt: str = "", tenant: str = "", key: bytes = b""
) -> BlockHash:
    """Return the hash that all chains of one model, layout, adapter, salt and tenant start from.

    `tenant` is the salt of whoever asks, `salt` the request's own: the same one of two tenants is two. Without a tenant
    there is no such part, which is another hash than that of any tenant's.
    `key` is the cluster's secret, at most 64 bytes are used; without it a tenant could compute another's hashes.
    """
    state = hashlib.blake2b(digest_size=HASH_BYTES, key=key[:64])
    for part in (str(HASH_VERSION), model_digest, kv_fingerprint, adapter, salt, *((tenant,) if tenant else ())):
        data = part.encode()
        state.update(len(data).to_bytes(4, "little"))
        state.update(data)
    return BlockHash(state.digest())


def tenant_salt(name: str, key: bytes) -> str:
    """Return the salt of a tenant that was given none: the same in every process of the cluster, at any time."""
    return hmac.new(key, f"tenant salt\0{name}".encode(), hashlib.sha256).hexdigest()


def extend(parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """Return the hash of the block `tokens` that follows `parent`."""
    return chain(parent, tokens, len(tokens))[0]


def chain(root: BlockHash, tokens: Sequence[int], block_size: int) -> list[BlockHash]:
    """Return the hashes of all full blocks of `tokens`, first to last: floor(T / B) of them."""
    num_full = len(tokens) // block_size
    packed = array("I", tokens[: num_full * block_size])
    if sys.byteorder == "big":
        packed.byteswap()
    hashes: list[BlockHash] = []
    parent, data, size = root, packed.tobytes(), block_size * packed.itemsize
    for start in range(0, len(data), size):
        parent = BlockHash(hashlib.blake2b(parent + data[start : start + size], digest_size=HASH_BYTES).digest())
        hashes.append(parent)
    return hashes


def is_indexed(depth: int) -> bool:
    """True for the blocks of a chain, counted from 0, that the cluster's index has a key for: every INDEX_STRIDE-th."""
    return (depth + 1) % INDEX_STRIDE == 0


def max_hit_blocks(num_tokens: int, block_size: int) -> int:
    """Return how many blocks of a prompt a cache may serve: floor((T-1)/B), since the last token must be computed."""
    return max(0, (num_tokens - 1) // block_size)
