"""Tensors side by side in huge pages: for what is laid out once and read in every step.

Knows nothing of what the tensors mean. Invariant: no two share a cache line; the memory goes with the last of them.
"""

from __future__ import annotations

import math
import mmap

import torch

from pagewire.core import pages

CHUNK_BYTES = 32 << 20  # mapped at once; what is not used of it is never touched
ALIGNMENT = 64


def buffer(num_bytes: int) -> torch.Tensor:
    """Return memory for native code, for a while: `[num_bytes]` uint8, from the beginning of a cache line on."""
    return torch.empty(num_bytes, dtype=torch.uint8)


class Arena:
    """A place for tensors on a CPU that are made one after another and kept."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor of at least one element; raises OSError where there is no memory."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        if self._chunk is None or self._used + size > len(self._chunk):
            self._chunk, self._used = pages.map_anonymous(max(size, CHUNK_BYTES)), 0
        tensor = torch.frombuffer(self._chunk, dtype=dtype, count=count, offset=self._used).view(shape)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return tensor
