"""A pool of blocks in memory that others may map too: a pod's memfd that its engine computes in, a bytearray in a test.

Knows where block i lies, and nothing of what is in it. Invariant: no id outside the pool is ever touched.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import mmap
import os

from pagewire.core import pages
from pagewire.core.buffer_address import BufferAddress
from pagewire.kvtransfer.summed_copy import summed_copy_at

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10  # F_SEAL_FUTURE_WRITE: mappings that exist go on writing


class PoolMemory:
    """`num_blocks` blocks in `buffer`, block i at byte i x block_bytes. Raises ValueError when they do not fit.

    `fd` is the file that the buffer maps from its beginning; it is duplicated. None: nobody else can map it.
    """

    def __init__(
        self, buffer: memoryview | mmap.mmap, *, block_bytes: int, num_blocks: int, fd: int | None = None
    ) -> None:
        view = memoryview(buffer).cast("B")
        if block_bytes <= 0 or num_blocks < 0 or view.nbytes < block_bytes * num_blocks:
            raise ValueError(f"{num_blocks} blocks of {block_bytes} bytes in {view.nbytes}")
        self._buffer = buffer
        self._view = view
        self._block_bytes = block_bytes
        self._num_blocks = num_blocks
        self._fd = None if fd is None else os.dup(fd)
        self._splits: dict[int, PoolMemory] = {}
        self._address: int | None = None  # once it is written by address

    @classmethod
    def map(cls, fd: int, *, block_bytes: int, num_blocks: int) -> PoolMemory:
        """Map a shared file of at least that size, to read and to write. Raises OSError or ValueError."""
        memory = pages.map_file(fd, num_blocks * block_bytes, writable=True)
        collections.deque(pages.prefault(memory, writable=True), maxlen=0)
        return cls(memory, block_bytes=block_bytes, num_blocks=num_blocks, fd=fd)

    def seal(self) -> None:
        """From now on nobody can map the file to write, or resize it. Raises OSError where it is no sealable memfd."""
        if self._fd is None:
            raise OSError("a pool without a file")
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._block_bytes

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return self._num_blocks

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self._num_blocks * self._block_bytes

    @property
    def fd(self) -> int | None:
        """The file that can be mapped to see the pool, ours to close; None without one."""
        return self._fd

    @property
    def view(self) -> memoryview:
        """The whole pool, in place."""
        return self._view

    @property
    def address(self) -> int:
        """Where block 0 lies in this process. Raises TypeError on a read-only buffer."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._view)) if self._view.nbytes else 0

    def split(self, count: int) -> PoolMemory:
        """Return the same memory as blocks of which `count` are one of ours; it ends with us. Raises ValueError."""
        if count == 1:
            return self
        if count < 1 or self._block_bytes % count:
            raise ValueError(f"a block of {self._block_bytes} bytes does not split into {count} equal parts")
        if count not in self._splits:
            self._splits[count] = PoolMemory(
                self._buffer, block_bytes=self._block_bytes // count, num_blocks=self._num_blocks * count, fd=self._fd
            )
        return self._splits[count]

    def read(self, block_id: int) -> memoryview:
        """Return the block's bytes, in place; it shows what is written later, too. Raises IndexError."""
        return self._view[self._span(block_id)].toreadonly()

    def write(self, block_id: int, data: bytes | bytearray | memoryview) -> None:
        """Copy `data` into the block. Raises IndexError outside the pool, ValueError on a wrong length."""
        span = self._span(block_id)
        if len(data) != self._block_bytes:
            raise ValueError(f"{len(data)} bytes for a block of {self._block_bytes}")
        self._view[span] = data

    def write_summed(self, block_id: int, data: bytes | bytearray | memoryview, seed: int) -> int:
        """Copy `data` into the block; return the checksum of what was written. Raises as `write` does."""
        if len(data) != self._block_bytes:
            raise ValueError(f"{len(data)} bytes for a block of {self._block_bytes}")
        with BufferAddress(data) as address:
            return self.write_summed_from(block_id, address, seed)

    def write_summed_from(self, block_id: int, address: int, seed: int) -> int:
        """The same, of a block's length of bytes at `address`, which the caller answers for. Raises IndexError."""
        start = self._span(block_id).start
        if self._address is None:
            self._address = self.address
        return summed_copy_at(self._address + start, address, self._block_bytes, seed)

    def close(self) -> None:
        """Let go of the file and the mapping; views that are still out keep it mapped until they are gone."""
        for split in self._splits.values():
            split.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._address, self._num_blocks = None, 0
        try:
            self._view.release()
            if isinstance(self._buffer, mmap.mmap):
                self._buffer.close()
        except BufferError:
            return

    def _span(self, block_id: int) -> slice:
        if not 0 <= block_id < self._num_blocks:
            raise IndexError(f"block {block_id} of {self._num_blocks}")
        return slice(block_id * self._block_bytes, (block_id + 1) * self._block_bytes)
