"""The shape of one KV block, and all byte arithmetic that follows from it.

Default order `layer_outer`: pool `[N, L, 2, Hk, B, D]`; one block is one contiguous span over all layers, so that
moving a block is one copy. `head_outer` is `[N, Hk, L, 2, B, D]`: a head shard is one span (tensor parallelism).
Quantised KV has a scale for each token, head, K and V, behind its D numbers: it is part of the slot and goes where the
slot goes, so the last axis is D + 2 bytes wide (docs/decisions/0013).
The order is each pool's own affair: what a block means does not depend on it, and blocks are translated on their way.
Knows nothing of tensors, of who holds a block, or of what is in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from enum import StrEnum

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
SCALE_BYTES = {"fp8": 2, "int8": 2}  # fp8 is e4m3; the scale is a bfloat16
BLOCK_SIZES = (16, 32, 64, 128)
HEAD_MULTIPLE = 16  # numbers of the widest vectors


def stored_head_dim(head_dim: int) -> int:
    """Return how many numbers a pool keeps for a head of `head_dim`: whole vectors, the last filled up with zeros."""
    return -(-head_dim // HEAD_MULTIPLE) * HEAD_MULTIPLE


class BlockOrder(StrEnum):
    """Which axis of a block is outermost."""

    LAYER_OUTER = "layer_outer"
    HEAD_OUTER = "head_outer"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Shape, order and dtype of the KV of one token, one block, one pool."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    order: BlockOrder = BlockOrder.LAYER_OUTER

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {sorted(DTYPE_BYTES)}")
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size {self.block_size} is not one of {BLOCK_SIZES}")
        for name in ("num_layers", "num_kv_heads", "head_dim"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, is {getattr(self, name)}")

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token's K or V of one head in one layer: D itemsize, and the scale."""
        return self.head_dim * DTYPE_BYTES[self.dtype] + SCALE_BYTES.get(self.dtype, 0)

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token over all layers: 2 L Hk slot bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.slot_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: token_bytes x B."""
        return self.token_bytes * self.block_size

    def shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return the pool's shape for `num_blocks` blocks, in elements of the dtype."""
        width = self.slot_bytes // DTYPE_BYTES[self.dtype]
        if self.order is BlockOrder.HEAD_OUTER:
            return (num_blocks, self.num_kv_heads, self.num_layers, 2, self.block_size, width)
        return (num_blocks, self.num_layers, 2, self.num_kv_heads, self.block_size, width)

    def part(self, count: int) -> KVLayout:
        """Return the layout of one of `count` equal parts of the heads. Raises ValueError where they do not divide."""
        if count < 1 or self.num_kv_heads % count:
            raise ValueError(f"{self.num_kv_heads} KV heads do not split into {count} equal parts")
        return dataclasses.replace(self, num_kv_heads=self.num_kv_heads // count)

    def num_blocks(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens: ceil(T / B)."""
        return -(-num_tokens // self.block_size)

    def fingerprint(self) -> str:
        """Return 16 hex digits that are equal exactly when two pools' blocks mean the same, in whatever order."""
        text = "|".join(
            str(value)
            for value in (
                self.num_layers,
                self.num_kv_heads,
                self.head_dim,
                self.block_size,
                self.dtype,
            )
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
