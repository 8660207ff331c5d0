"""Blocks through a two-rank communicator: the source sends each message's blocks, the taker receives and places them.

    source  tag (the message's number), READY, gather into staging, send ...
    taker   ... READY read -> receive into staging; place = staging to pool; done = staging is free again

A pair's first message builds its communicator, and the first one after an idle time builds it anew: that message says
so. A receive is posted only when its message was read, so it always has a partner; a message whose shipment is fenced
or gone meanwhile still sends and is received, into staging alone. One thread an end sends or receives, in order.

Knows messages and staging; when two ranks meet is `CommunicatorPair`'s, how is `Communicator`'s. Invariants: a
communicator touches staging alone, however it hangs; the pool is written within `place` by us; what is staged is
bounded.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.carrier import Carrier, Move
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.transports.communicator import SOURCE, TAKER, Rendezvous, host_store, join_store
from pagewire.kvtransfer.transports.communicator_pair import CommunicatorPair
from pagewire.kvtransfer.transports.message_numbers import MessageNumbers
from pagewire.kvtransfer.transports.rooms import Rooms
from pagewire.kvtransfer.transports.staging import Staging, device_of, gather, scatter, scatter_summed
from pagewire.kvtransfer.transports.worker import Worker
from pagewire.kvtransfer.wire import Ready

NAME = "collective"
FLOW = Flow(window_bytes=32 << 20, message_bytes=4 << 20)
PLACE_BYTES = 1 << 20
NUMBER_BITS = 31
_FRESH = 1 << NUMBER_BITS  # of a tag: the communicator is built anew for this message


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOptions:
    """`host` is our own address, to listen on. Seconds: to build a communicator or pass one message; until an idle one
    closes. `staged_bytes` bounds what a source can make us stage: two windows and more."""

    host: str
    timeout_s: float = 10.0
    idle_s: float = 60.0
    staged_bytes: int = 256 << 20


def carrier(options: CollectiveOptions) -> Carrier:
    """Return the carrier of a pod."""
    return Carrier(
        name=NAME,
        outlet=lambda memory, _: CollectiveOutlet(memory, options),
        inlet=lambda memory, _: CollectiveInlet(memory, options),
        flow=FLOW,
    )


class CollectiveOutlet:
    """The source's end; see `Outlet`."""

    line = None
    announces = True
    lends = False

    def __init__(self, memory: BlockMemory, options: CollectiveOptions) -> None:
        self._memory = memory
        self._options = options
        self._device = device_of(memory)
        self.checksums = self._device.type == "cpu"
        self._pair = CommunicatorPair(SOURCE, self._device, host=options.host, timeout_s=options.timeout_s)
        self._staging = Staging(self._device)
        self._numbers = MessageNumbers(NUMBER_BITS)

    async def open(self, card: bytes) -> bytes:
        """Open a store for the pair; see `Outlet`."""
        if card != self._device.type.encode():
            raise TransferFailed(f"our pool is on {self._device.type}, the taker's is not")
        name = secrets.token_bytes(16)
        host, timeout_s = self._options.host, self._options.timeout_s
        self._pair.store, port = await self._pair.worker.run(host_store, host, name, timeout_s)
        return Rendezvous(host=host, port=port, name=name, idle_s=self._options.idle_s).card()

    def tag(self, batch: Batch) -> int:
        """Number the message; see `Outlet`."""
        self._pair.stay()
        number = self._numbers.take()
        return number if self._pair.is_up else number | _FRESH

    async def carry(self, batch: Batch) -> None:
        """Send the message's blocks; see `Outlet`."""
        if not self._pair.is_up:
            await self._pair.build()
        await self._pair.worker.run(self._send, batch.block_ids)
        self._pair.hang_up_after(self._options.idle_s)

    def close(self) -> None:
        """Abort; see `Outlet`."""
        self._pair.close()

    def _send(self, block_ids: Sequence[int]) -> None:
        num_bytes = len(block_ids) * self._memory.block_bytes
        gather(self._memory, block_ids, self._staging.sized(num_bytes))
        # Closed since then, the communicator is gone: what was read of blocks that may have others' data goes nowhere.
        self._pair.communicator().send(self._staging.tensor[:num_bytes])


class CollectiveInlet:
    """The taker's end; see `Inlet`."""

    line = None
    place_bytes = PLACE_BYTES  # copied by the CPU: the loop gets a turn in between
    max_places = 1

    def __init__(self, memory: BlockMemory, options: CollectiveOptions) -> None:
        self._memory = memory
        self._options = options
        self._device = device_of(memory)
        self.card = self._device.type.encode()
        self.needs_checksums = self._device.type == "cpu"  # so is the source's pool then
        self._pair = CommunicatorPair(TAKER, self._device, host=options.host, timeout_s=options.timeout_s)
        self._placing = Worker("collective-place") if self._device.type == "cuda" else None
        self._idle_s = 0.0
        self._numbers = MessageNumbers(NUMBER_BITS)
        self._staged = Rooms(self._room, max(options.staged_bytes, memory.block_bytes))

    async def open(self, card: bytes) -> None:
        """Reach the source's store; see `Inlet`."""
        meeting = Rendezvous.read(card)
        # By then the source has closed, and says so with its next message.
        self._idle_s = 2 * meeting.idle_s + self._options.timeout_s
        self._pair.store = await self._pair.worker.run(join_store, meeting, self._options.timeout_s)

    async def arrived(self, ready: Ready) -> None:
        """Receive the message's blocks; see `Inlet`."""
        if not self._numbers.came(ready.tag & ~_FRESH):
            return  # a message that came twice; its payload came once
        self._pair.stay()
        num_bytes = len(ready) * self._memory.block_bytes
        staging = self._staged.take(ready, num_bytes)
        if ready.tag & _FRESH:
            self._pair.hang_up()
            await self._pair.build()
        await self._pair.worker.run(self._pair.communicator().receive, staging.tensor[:num_bytes])
        self._pair.hang_up_after(self._idle_s)

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy from staging into the pool; see `Inlet`."""
        staging = self._staged.of(ready)
        if staging is None:
            raise TransferFailed("nothing came for this message")
        if self._placing is None:
            return scatter_summed(staging, self._memory, moves, ready.seed)
        await self._placing.finish(lambda: None, scatter, staging, self._memory, moves)
        return ()

    def done(self, ready: Ready) -> None:
        """The staging of the message may be reused; see `Inlet`."""
        self._staged.give_back(ready)

    def close(self) -> None:
        """Abort; see `Inlet`."""
        self._pair.close()
        if self._placing is not None:
            self._placing.close()
        self._staged.clear()

    def _room(self, num_bytes: int) -> Staging:
        return Staging(self._device).sized(num_bytes)
