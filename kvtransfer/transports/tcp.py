"""The carrier between hosts: messages and blocks over a plain TCP socket of their own, beside the gRPC stream.

    source  card (where we listen, two tokens) ... READY, then the blocks as they lie in the pool: no copy of ours
    taker   connects and shows one token, is shown the other ... READY read -> receive into staging; place = to the pool

A payload is received once its message was read, so nothing lies anywhere that no message names; one that is late is
received and let go. Staging is used again, the last first, so it stays in the cache: a copy out of it that sums is as
cheap as the sum alone of what was received in place, and no claim is open while a slow network delivers.

Knows messages and staging; who may connect is `SideDoor`'s, how bytes go over a socket `SocketLine`'s. In the clear:
a pod with TLS does not offer it. Invariants: the pool is written within `place` alone, and read until the kernel has
taken what `carry` gave it; what is staged is bounded.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from pagewire.core.errors import TransferFailed
from pagewire.core.side_door import Card, SideDoor, enter_by
from pagewire.kvtransfer.carrier import Carrier, Line, Move
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.transports.line import SocketLine
from pagewire.kvtransfer.transports.message_numbers import MessageNumbers
from pagewire.kvtransfer.transports.rooms import Rooms
from pagewire.kvtransfer.wire import Ready

NAME = "tcp"
FLOW = Flow(window_bytes=16 << 20, message_bytes=2 << 20)
READ_BYTES = 4 << 10  # of messages at a time: what of the payload comes with one is copied once more
STAGED_BYTES = 64 << 20  # two windows, and more
TAG_BITS = 32


def carrier(door: SideDoor) -> Carrier:
    """Return the carrier of a pod, whose streams come by its door."""
    return Carrier(
        name=NAME,
        outlet=lambda memory, _: TcpOutlet(memory, door),
        inlet=lambda memory, _: TcpInlet(memory),
        flow=FLOW,
    )


class TcpOutlet:
    """The source's end; see `Outlet`."""

    announces = True
    lends = False
    checksums = True

    def __init__(self, memory: BlockMemory, door: SideDoor) -> None:
        self._socket_line = SocketLine(write_flags=socket.MSG_MORE)
        self._memory = memory
        self._door = door
        self._card: Card | None = None
        self._numbers = MessageNumbers(TAG_BITS)
        self._is_closed = False

    @property
    def line(self) -> Line:
        """To the one that showed the token."""
        return self._socket_line

    async def open(self, card: bytes) -> bytes:
        """Expect the one that holds our card. Raises TransferFailed."""
        try:
            self._card = await self._door.invite(self._socket_line.attach)
        except OSError as error:
            raise TransferFailed(str(error)) from error
        if self._is_closed:
            self.close()
            raise TransferFailed("closed while it opened")
        return self._card.to_bytes()

    def tag(self, batch: Batch) -> int:
        """Number the message; see `Outlet`."""
        return self._numbers.take()

    async def carry(self, batch: Batch) -> None:
        """Send the blocks from where they lie; see `Outlet`."""
        await self._socket_line.write_payload([self._memory.read(block_id) for block_id in batch.block_ids])
        await asyncio.sleep(0)  # a kernel with room takes all of it at once: others have a turn all the same

    def close(self) -> None:
        """Expect nobody any more and hang up; see `Outlet`."""
        self._is_closed = True
        if self._card is not None:
            self._door.forget(self._card)
        self._socket_line.close()


class TcpInlet:
    """The taker's end; see `Inlet`."""

    card = b""
    place_bytes = 4 << 20
    max_places = 1
    needs_checksums = True

    def __init__(self, memory: BlockMemory, staged_bytes: int = STAGED_BYTES) -> None:
        self._socket_line = SocketLine(read_bytes=READ_BYTES)
        self._memory = memory
        self._staged = Rooms(_room, max(staged_bytes, memory.block_bytes))
        self._numbers = MessageNumbers(TAG_BITS)

    @property
    def line(self) -> Line:
        """To the source, which has answered."""
        return self._socket_line

    async def open(self, card: bytes) -> None:
        """Connect to where the card says, as it says. Raises TransferFailed."""
        try:
            self._socket_line.attach(await enter_by(Card.from_bytes(card)))
        except (OSError, ValueError) as error:
            raise TransferFailed(f"the source's socket cannot be used: {error}") from error

    async def arrived(self, ready: Ready) -> None:
        """Receive the message's blocks; see `Inlet`."""
        await asyncio.sleep(0)  # what came before it is placed now, while it is in the cache
        if not self._numbers.came(ready.tag):
            return  # a message that came twice; its payload came once
        num_bytes = len(ready) * self._memory.block_bytes
        await self._socket_line.read_payload(self._staged.take(ready, num_bytes)[:num_bytes])

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy from staging into the pool; see `Inlet`. Raises IndexError outside the pool."""
        staged = self._staged.of(ready)
        if staged is None:
            raise TransferFailed("nothing came for this message")
        size = self._memory.block_bytes
        return [
            self._memory.write_summed(block_id, staged[position * size : (position + 1) * size], ready.seed(position))
            for position, block_id in moves
        ]

    def done(self, ready: Ready) -> None:
        """The staging of the message may be used again; see `Inlet`."""
        self._staged.give_back(ready)

    def close(self) -> None:
        """Hang up; see `Inlet`."""
        self._socket_line.close()
        self._staged.clear()


def _room(num_bytes: int) -> memoryview:
    return memoryview(bytearray(num_bytes))
