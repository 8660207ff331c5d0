"""The KV pool's memory as a pod's front sees it: bytes of whole blocks, mapped from the engine's file descriptor.

Knows block ids and bytes; knows nothing of who holds a block. Every access is checked against the pool's bounds.
"""

from __future__ import annotations

import mmap


class BlockMemory:
    """Blocks of one size in a shared file."""

    def __init__(self, fd: int, num_blocks: int, block_bytes: int) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self._memory = mmap.mmap(fd, num_blocks * block_bytes)
        self._view = memoryview(self._memory)

    def read(self, block_id: int) -> memoryview:
        """Return a read-only view of a block; it shows what the engine writes later, too. Raises IndexError."""
        return self._span(block_id).toreadonly()

    def write(self, block_id: int, data: bytes | bytearray | memoryview) -> None:
        """Overwrite a block; raises IndexError for its id, ValueError unless `data` is exactly one block."""
        if memoryview(data).nbytes != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, got {memoryview(data).nbytes}")
        self._span(block_id)[:] = data

    def close(self) -> None:
        """Unmap the pool; views that are still out keep it mapped until they are gone."""
        self._view.release()
        try:
            self._memory.close()
        except BufferError:
            return

    def _span(self, block_id: int) -> memoryview:
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block {block_id} is outside a pool of {self.num_blocks}")
        start = block_id * self.block_bytes
        return self._view[start : start + self.block_bytes]
