"""The memory of the KV pool: how many blocks a budget buys, and the tensor over them.

Block `i` is at byte `i * block_bytes`. On a CPU the tensor lies over memory that may be shared with another process
through a file descriptor; on a device it is one allocation, which `export` lets others map. Knows nothing of who holds
a block.
"""

from __future__ import annotations

import collections
import mmap
import os
from dataclasses import dataclass

import torch

from pagewire.core import pages
from pagewire.core.cuda_driver import CudaDriver, Export
from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.core.kv_sizing import KVSizing

CPU = torch.device("cpu")
TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """A pool: `pool` is `[N, L, 2, Hk, B, D]` over `memory`, strided where the layout's order is another.

    Its last axis is D + 2 where KV is quantised; see `kernels/kv_elements.py`.
    """

    sizing: KVSizing
    memory: torch.Tensor  # [bytes of the pool] uint8
    pool: torch.Tensor

    @classmethod
    def open(cls, layout: KVLayout, budget_bytes: int, device: torch.device = CPU, fd: int = -1) -> KVCache:
        """Take as many blocks as the budget buys, on `device`.

        On a CPU they are mapped in the file `fd`, which is sized for them, or anonymously for -1. Raises ValueError
        when the budget does not buy a single block, torch.OutOfMemoryError where a device has less.
        """
        sizing = KVSizing(layout=layout, memory_bytes=budget_bytes)
        if device.type == "cpu":
            memory = torch.frombuffer(_mapped(sizing.pool_bytes, fd), dtype=torch.uint8)
        else:
            memory = torch.empty(sizing.pool_bytes, dtype=torch.uint8, device=device)
        pool = memory.view(TORCH_DTYPES[layout.dtype]).view(layout.shape(sizing.num_blocks))
        if layout.order is BlockOrder.HEAD_OUTER:
            pool = pool.permute(0, 2, 3, 1, 4, 5)  # [N, Hk, L, 2, B, D] -> [N, L, 2, Hk, B, D]
        return cls(sizing=sizing, memory=memory, pool=pool)

    def export(self) -> Export | None:
        """Return how other processes of this host map a pool on a device; None for one in host memory.

        Raises TransferFailed where the device cannot, or the pool is more than one allocation of its.
        """
        if not self.memory.is_cuda:
            return None
        driver = CudaDriver(self.memory.get_device())
        driver.use()
        return driver.export(self.memory.data_ptr(), self.sizing.pool_bytes)

    @property
    def layout(self) -> KVLayout:
        """The layout of its blocks."""
        return self.sizing.layout

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return self.sizing.num_blocks

    def describe(self) -> str:
        """Return one line for people: what was taken, and what it holds."""
        sizing = self.sizing
        return (
            f"KV pool: {sizing.num_blocks} blocks of {sizing.layout.block_size} tokens, "
            f"{sizing.pool_bytes / 2**20:.0f} MiB, holds {sizing.num_tokens} tokens"
        )


def _mapped(num_bytes: int, fd: int) -> mmap.mmap:
    if fd >= 0:
        os.ftruncate(fd, num_bytes)
        memory = pages.map_file(fd, num_bytes, writable=True)
    else:
        memory = pages.map_anonymous(num_bytes)
    collections.deque(pages.prefault(memory, writable=True), maxlen=0)  # no step shall wait for a page
    return memory
