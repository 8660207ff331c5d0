"""The carrier between CPU pods of one host: the taker maps the source's pool and copies blocks out of it.

The pool is a memfd. Its descriptor goes, read-only, to whoever shows the one-time token that came with the proven
welcome (`DescriptorPost`); seals keep everybody but the source's own processes from writing or resizing it: a pod's
memory is written by that pod alone, and a taker's reads never fault. Nothing has a name that could outlive a pod,
except the socket file under `shm_dir` while a stream opens. The stream's messages go over the same connection. Knows
nothing of shipments. Invariant: no source block outside the mapped pool is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import mmap
import os
import secrets
import struct
from collections.abc import Sequence

from pagewire.core import pages
from pagewire.core.buffer_address import BufferAddress
from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed
from pagewire.core.token_door import TOKEN_BYTES
from pagewire.kvtransfer.carrier import Carrier, Line, Move
from pagewire.kvtransfer.memory import SEALS, PoolMemory
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.transports.descriptor_post import DescriptorPost, fetch_descriptor
from pagewire.kvtransfer.transports.line import SocketLine
from pagewire.kvtransfer.wire import Ready

NAME = "shm"
# Messages are tiny: their size sets how often one is written and credited, and how long the first is checksummed.
FLOW = Flow(window_bytes=128 << 20, message_bytes=16 << 20)

STAT_BYTES = 512  # of what `stat` calls a block
_CARD = struct.Struct(f"<{TOKEN_BYTES}sQ")  # token, blocks in the pool | the socket's address


class ShmOutlet:
    """The `Outlet` of a pool in a sealed memfd: hands the descriptor out, once."""

    announces = True
    lends = True
    checksums = True

    def __init__(self, shm_dir: str, memory: BlockMemory, _taker_id: str) -> None:
        if not isinstance(memory, PoolMemory) or memory.fd is None:
            raise TransferFailed("this pool has no descriptor that another process could map")
        if fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise TransferFailed("this pool is not sealed: whoever maps it could write into it")
        self._shm_dir = shm_dir
        self._fd = memory.fd
        self._num_blocks = memory.num_blocks
        self._post: DescriptorPost | None = None

    @property
    def line(self) -> Line | None:
        """To the one that fetched the descriptor."""
        return self._post.line if self._post is not None else None

    async def open(self, card: bytes) -> bytes:
        """Listen for the one that holds our card. Raises TransferFailed."""
        token = secrets.token_bytes(TOKEN_BYTES)
        try:
            self._post = DescriptorPost(self._shm_dir, self._fd, token)
        except OSError as error:
            raise TransferFailed(f"no socket in {self._shm_dir or 'this network namespace'}: {error}") from error
        return _CARD.pack(token, self._num_blocks) + self._post.address

    def tag(self, batch: Batch) -> int:
        """There is nothing to know."""
        return 0

    async def carry(self, batch: Batch) -> None:
        """The taker copies."""

    def close(self) -> None:
        """Stop listening. What was mapped stays mapped: the taker's stream ends with ours."""
        if self._post is not None:
            self._post.close()


class ShmInlet:
    """The `Inlet` that copies out of the source's pool, mapped to read."""

    card = b""
    place_bytes = 4 << 20
    max_places = 1
    needs_checksums = True

    def __init__(self, memory: BlockMemory, _source_id: str) -> None:
        self.line = SocketLine()
        self._memory = memory
        self._block_bytes = memory.block_bytes
        self._num_blocks = 0
        self._map: mmap.mmap | None = None
        self._prefaulting: asyncio.Task[None] | None = None
        self._address = 0
        self._held = contextlib.ExitStack()  # the mapping, where it is

    async def open(self, card: bytes) -> None:
        """Fetch the descriptor and map the pool. Raises TransferFailed."""
        if len(card) <= _CARD.size:
            raise TransferFailed(f"a card of {len(card)} bytes")
        token, num_blocks = _CARD.unpack_from(card)
        num_bytes = num_blocks * self._block_bytes
        try:
            fd = await fetch_descriptor(card[_CARD.size :], token, self.line)
            try:
                # A file that could shrink under us would end this process at the next read.
                if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0 or os.fstat(fd).st_size < num_bytes:
                    raise TransferFailed("the source's pool is not what its card says")
                self._map = pages.map_file(fd, num_bytes, writable=False)
                has_pages = os.fstat(fd).st_blocks * STAT_BYTES >= num_bytes
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise TransferFailed(f"the source's pool cannot be mapped: {error}") from error
        self._address = self._held.enter_context(BufferAddress(self._map))
        self._num_blocks = num_blocks
        if has_pages:  # what the source does not have yet would become ours to pay for
            self._prefaulting = asyncio.create_task(_prefault(self._map))

    async def arrived(self, ready: Ready) -> None:
        """The source's blocks stay as they are until they are credited."""

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy from the mapping into our pool. Raises ContractBroken on a block outside the source's."""
        if not self._num_blocks:
            raise StreamLost("the source's pool is not mapped any more")
        sums = []
        for position, block_id in moves:
            source_id = ready.block_ids[position]
            if source_id >= self._num_blocks:
                raise ContractBroken(f"block {source_id} of {self._num_blocks} of the source's")
            address = self._address + source_id * self._block_bytes
            sums.append(self._memory.write_summed_from(block_id, address, ready.seed(position)))
        return sums

    def done(self, ready: Ready) -> None:
        """Nothing was staged."""

    def close(self) -> None:
        """Hang up and unmap."""
        self.line.close()
        self._num_blocks = 0
        self._held.close()
        if self._prefaulting is not None:
            self._prefaulting.cancel()
        if self._map is not None:
            self._map.close()


async def _prefault(memory: mmap.mmap) -> None:
    """Have the source's pages at hand before its blocks are, a turn at a time."""
    for _ in pages.prefault(memory, writable=False):
        await asyncio.sleep(0)


def shm_carrier(shm_dir: str = "") -> Carrier:
    """Return the carrier; its sockets are abstract, or lie in `shm_dir` (pods in other network namespaces)."""
    return Carrier(name=NAME, outlet=functools.partial(ShmOutlet, shm_dir), inlet=ShmInlet, flow=FLOW)
