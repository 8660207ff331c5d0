"""The memory of the KV pool: how many blocks a budget buys, and the tensor over them.

The tensor lies over memory that may be shared with another process through a file descriptor; block `i` is at byte
`i * block_bytes`. Knows nothing of who holds a block.
"""

from __future__ import annotations

import collections
import mmap
import os
from dataclasses import dataclass

import torch

from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.kvtransfer.prefault import prefault

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """A mapped pool: `pool` is `[N, L, 2, Hk, B, D]` over `memory`, strided where the layout's order is another."""

    layout: KVLayout
    num_blocks: int
    memory: mmap.mmap
    pool: torch.Tensor

    @classmethod
    def open(cls, layout: KVLayout, budget_bytes: int, fd: int = -1) -> KVCache:
        """Map as many blocks as the budget buys: in the file `fd`, which is sized for them, or anonymously for -1.

        Raises ValueError when the budget does not buy a single block.
        """
        num_blocks = budget_bytes // layout.block_bytes
        if num_blocks < 1:
            raise ValueError(f"a KV budget of {budget_bytes} bytes is less than one block of {layout.block_bytes}")
        num_bytes = num_blocks * layout.block_bytes
        if fd >= 0:
            os.ftruncate(fd, num_bytes)
        memory = mmap.mmap(fd, num_bytes)
        collections.deque(prefault(memory, writable=True), maxlen=0)  # no step shall wait for a page
        pool = torch.frombuffer(memory, dtype=TORCH_DTYPES[layout.dtype]).view(layout.shape(num_blocks))
        if layout.order is BlockOrder.HEAD_OUTER:
            pool = pool.permute(0, 2, 3, 1, 4, 5)  # [N, Hk, L, 2, B, D] -> [N, L, 2, Hk, B, D]
        return cls(layout=layout, num_blocks=num_blocks, memory=memory, pool=pool)

    @property
    def num_tokens(self) -> int:
        """Tokens that the whole pool holds."""
        return self.num_blocks * self.layout.block_size

    def describe(self) -> str:
        """Return one line for people: what was taken, and what it holds."""
        return (
            f"KV pool: {self.num_blocks} blocks of {self.layout.block_size} tokens, "
            f"{self.num_blocks * self.layout.block_bytes / 2**20:.0f} MiB, holds {self.num_tokens} tokens"
        )
