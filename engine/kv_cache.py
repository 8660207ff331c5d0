"""The memory of the KV pool: how many blocks a budget buys, and the tensors over them.

On a CPU it may be shared with other processes through a file descriptor; on a device it is an allocation, which
`export` lets others map. Where each rank has a device the pool lies in as many parts, each with some heads of every
block: what is done to whole blocks is done to all of them. Knows nothing of who holds a block.
Invariant: block i of each part, side by side, are block i of a pool in one part.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pagewire.core import pages
from pagewire.core.cuda_driver import CudaDriver
from pagewire.core.cuda_export import Export
from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.core.kv_sizing import KVSizing
from pagewire.engine.model.shard import Shard

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
    """A pool: P `parts`, each `[N, L, 2, Hk / P, B, D]` over its `memory`, strided where the layout's order is another.

    Their last axis is D + 2 where KV is quantised; see `kernels/kv_elements.py`.
    """

    sizing: KVSizing
    memory: tuple[torch.Tensor, ...]  # [bytes of the part] uint8
    parts: tuple[torch.Tensor, ...]

    @classmethod
    def open(
        cls, layout: KVLayout, budget_bytes: int, devices: Sequence[torch.device] = (CPU,), fd: int = -1
    ) -> KVCache:
        """Take as many blocks as the budget buys, an equal part of each on each of the devices.

        On a CPU they are mapped in the file `fd`, which is sized for them, or anonymously for -1. Raises ValueError
        when the budget does not buy a single block, heads do not divide, or a CPU has less; torch.OutOfMemoryError
        where a device has.
        """
        sizing = KVSizing(layout=layout, memory_bytes=budget_bytes)
        num_bytes = sizing.pool_bytes // len(devices)
        if devices[0].type == "cpu":
            try:
                mapped = _mapped(sizing.pool_bytes, fd)
            except (OSError, OverflowError) as error:
                raise ValueError(f"kv_memory_bytes {budget_bytes}: there is no room for as many bytes here") from error
            memory = torch.split(torch.frombuffer(mapped, dtype=torch.uint8), num_bytes)
        else:
            memory = tuple(torch.empty(num_bytes, dtype=torch.uint8, device=device) for device in devices)
        part = layout.part(len(devices))
        return cls(sizing=sizing, memory=tuple(memory), parts=tuple(blocks_in(each, part) for each in memory))

    @property
    def pool(self) -> torch.Tensor:
        """The first part, which is all of it where ranks share one: `[N, L, 2, Hk / P, B, D]`."""
        return self.parts[0]

    def heads_of(self, shard: Shard) -> torch.Tensor:
        """Return the blocks as a rank has them, with its heads alone: `[N, L, 2, Hk / R, B, D]`."""
        if len(self.parts) > 1:
            return self.parts[shard.rank]
        return self.pool[:, :, :, shard.part(self.layout.num_kv_heads)]

    def export(self) -> tuple[Export, ...]:
        """Return how other processes of this host map each part of a pool on devices; none for one in host memory.

        Raises TransferFailed where a device cannot, or a part is more than one allocation of its.
        """
        if not self.pool.is_cuda:
            return ()
        return tuple(map(_exported, self.memory))

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


def blocks_in(memory: torch.Tensor, layout: KVLayout) -> torch.Tensor:
    """Return `[N, L, 2, Hk, B, D]` over memory `[bytes]` uint8 that is full of blocks of a layout."""
    blocks = memory.view(TORCH_DTYPES[layout.dtype]).view(layout.shape(memory.numel() // layout.block_bytes))
    if layout.order is BlockOrder.HEAD_OUTER:
        blocks = blocks.permute(0, 2, 3, 1, 4, 5)  # [N, Hk, L, 2, B, D] -> [N, L, 2, Hk, B, D]
    return blocks


@contextlib.contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Have kernels be launched on a device: else it is that of the calling thread, which may be another."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        yield


def _exported(memory: torch.Tensor) -> Export:
    with torch.cuda.device(memory.device):  # the calling thread's own again afterwards
        driver = CudaDriver(memory.get_device())
        driver.use()
        return driver.export(memory.data_ptr(), memory.nbytes)


def _mapped(num_bytes: int, fd: int) -> mmap.mmap:
    if fd >= 0:
        os.ftruncate(fd, num_bytes)
        memory = pages.map_file(fd, num_bytes, writable=True)
    else:
        memory = pages.map_anonymous(num_bytes)
    collections.deque(pages.prefault(memory, writable=True), maxlen=0)  # no step shall wait for a page
    return memory
