"""Blocks through NIXL: the taker reads the source's registered pool, straight into its own registered pool.

    source  registers its pool; its card is the agent's metadata, and where the pool begins
    taker   loads that, reads the source's stamp as a proof that there is a way, then reads each message's blocks:
            one request a `place`, runs of adjacent blocks one descriptor

UCX chooses the way: RDMA, NVLink, another process's memory on one host, or TCP, where the source's process does the
reading. On a device, where no checksum is told, the source's stamp is read again after the blocks: it changes when the
source lets go of the stream, so blocks read before were still held for us.

Knows blocks and cards; the library is `NixlAgent`'s. Invariant: a `place` ends when its read has, or its agent is
destroyed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pagewire.core.errors import StreamLost, TransferFailed
from pagewire.kvtransfer.carrier import Carrier, Move, spans
from pagewire.kvtransfer.greeting_wire import MAX_CARD_BYTES
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.transports.nixl_agent import STAMP_BYTES, NixlAgent, Region, Remote
from pagewire.kvtransfer.transports.worker import Worker
from pagewire.kvtransfer.wire import Ready

NAME = "nixl"
FLOW = Flow(window_bytes=32 << 20, message_bytes=4 << 20)
PLACE_BYTES = 4 << 20
TIMEOUT_S = 10.0
_CARD = struct.Struct("<4s32sQQiQ16s")  # magic, agent, pool, blocks, device (-1: host), where the stamp is, the stamp
_MAGIC = b"PWN1"


def carrier(timeout_s: float = TIMEOUT_S) -> Carrier:
    """Return the carrier of a pod; a read may take `timeout_s` seconds."""
    return Carrier(
        name=NAME,
        outlet=lambda memory, _: NixlOutlet(memory),
        inlet=lambda memory, _: NixlInlet(memory, timeout_s),
        flow=FLOW,
    )


class NixlOutlet:
    """The source's end; see `Outlet`. It only registers."""

    line = None
    announces = True
    lends = True

    def __init__(self, memory: BlockMemory) -> None:
        self._memory = memory
        self._region = _region(memory)
        self.checksums = self._region.device_index is None
        self._worker = Worker("nixl-source")
        self._agent: NixlAgent | None = None

    async def open(self, card: bytes) -> bytes:
        """Register the pool; see `Outlet`."""
        self._agent = agent = await self._worker.run(NixlAgent, self._region)
        device = -1 if self._region.device_index is None else self._region.device_index
        ours = _CARD.pack(
            _MAGIC,
            agent.name.encode(),
            self._region.address,
            self._memory.num_blocks,
            device,
            agent.stamp_address,
            agent.stamp,
        )
        ours += await self._worker.run(lambda: agent.metadata)
        if len(ours) > MAX_CARD_BYTES:
            raise TransferFailed(f"a card of {len(ours)} bytes: too many networks; UCX_NET_DEVICES names those to use")
        return ours

    def tag(self, batch: Batch) -> int:
        """There is nothing to know; see `Outlet`."""
        return 0

    async def carry(self, batch: Batch) -> None:
        """The taker reads; see `Outlet`."""

    def close(self) -> None:
        """Void the stamp, then take the agent away; see `Outlet`."""
        if self._agent is not None:
            self._agent.void_stamp()
            self._worker.close(self._agent.destroy)
        else:
            self._worker.close()


class NixlInlet:
    """The taker's end; see `Inlet`."""

    line = None
    card = b""
    place_bytes = PLACE_BYTES
    max_places = 1
    needs_checksums = False  # the source's pool may be a device's

    def __init__(self, memory: BlockMemory, timeout_s: float) -> None:
        self._memory = memory
        self._region = _region(memory)
        self._timeout_s = timeout_s
        self._worker = Worker("nixl-taker")
        self._agent: NixlAgent | None = None
        self._source: Remote | None = None
        self._source_blocks = 0

    async def open(self, card: bytes) -> None:
        """Load the source's agent and read its stamp: there is a way; see `Inlet`."""
        if len(card) < _CARD.size:
            raise TransferFailed(f"a card of {len(card)} bytes")
        magic, name, address, self._source_blocks, device, stamp_address, stamp = _CARD.unpack_from(card)
        if magic != _MAGIC or len(stamp) != STAMP_BYTES or not name.isascii():
            raise TransferFailed("not the card of a NIXL source")
        source = Remote(name.decode("ascii"), address, None if device < 0 else device, stamp_address, stamp)
        self._agent = agent = await self._worker.run(NixlAgent, self._region)
        await self._worker.run(agent.load, card[_CARD.size :], source)
        await self._worker.run(agent.check_stamp, source, self._timeout_s)
        self._source = source

    async def arrived(self, ready: Ready) -> None:
        """Nothing is on its way; see `Inlet`."""

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Read the blocks; see `Inlet`."""
        agent, source = self._agent, self._source
        if agent is None or source is None:
            raise StreamLost("the stream is not open")
        copies = spans(ready, moves, self._memory, self._source_blocks)
        await self._worker.finish(agent.give_up, agent.read, source, copies, self._timeout_s)
        if not ready.is_summed:
            await self._worker.finish(agent.give_up, agent.check_stamp, source, self._timeout_s)
        return ()

    def done(self, ready: Ready) -> None:
        """Nothing is staged; see `Inlet`."""

    def close(self) -> None:
        """Take the agent away; see `Inlet`."""
        if self._agent is not None:
            self._agent.give_up()
            self._worker.close(self._agent.destroy)
        else:
            self._worker.close()


@runtime_checkable
class _OnDevice(Protocol):
    """A pool on CUDA devices, told by its looks: its class would bring torch in."""

    addresses: tuple[int, ...]
    devices: tuple[int, ...]


def _region(memory: BlockMemory) -> Region:
    num_bytes = memory.num_blocks * memory.block_bytes
    if isinstance(memory, PoolMemory):
        return Region(memory.address, num_bytes)
    if isinstance(memory, _OnDevice) and len(memory.addresses) == 1:
        return Region(memory.addresses[0], num_bytes, memory.devices[0])
    raise TransferFailed("this pool cannot be registered")
