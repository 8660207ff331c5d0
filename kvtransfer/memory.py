"""A pool of blocks over memory that somebody else owns: a mapped memfd in a pod, a bytearray in a test.

Knows where block i lies, and nothing of what is in it. Invariant: no id outside the pool is ever touched.
"""

from __future__ import annotations


class PoolMemory:
    """`num_blocks` blocks in `buffer`, block i at byte i x block_bytes. Raises ValueError when they do not fit."""

    def __init__(self, buffer: memoryview, *, block_bytes: int, num_blocks: int) -> None:
        view = buffer.cast("B")
        if block_bytes <= 0 or num_blocks < 0 or view.nbytes < block_bytes * num_blocks:
            raise ValueError(f"{num_blocks} blocks of {block_bytes} bytes in {view.nbytes}")
        self._view = view
        self._block_bytes = block_bytes
        self._num_blocks = num_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._block_bytes

    def read(self, block_id: int) -> memoryview:
        """Return the block's bytes, in place. Raises IndexError outside the pool."""
        return self._view[self._span(block_id)].toreadonly()

    def write(self, block_id: int, data: memoryview) -> None:
        """Copy `data` into the block. Raises IndexError outside the pool, ValueError on a wrong length."""
        span = self._span(block_id)
        if data.nbytes != self._block_bytes:
            raise ValueError(f"{data.nbytes} bytes for a block of {self._block_bytes}")
        self._view[span] = data

    def _span(self, block_id: int) -> slice:
        if not 0 <= block_id < self._num_blocks:
            raise IndexError(f"block {block_id} of {self._num_blocks}")
        return slice(block_id * self._block_bytes, (block_id + 1) * self._block_bytes)
