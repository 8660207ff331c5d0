"""The portable carrier: the payload is in the stream's own messages, over any network.

Knows payloads alone; the stream is `stream_sender` and `stream_receiver`. Invariant: no block of the source's is read
once its message is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.core.errors import TransferFailed
from pagewire.core.heap import keep_heap
from pagewire.kvtransfer.carrier import Carrier, Move
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.transports.stream import check_block_bytes
from pagewire.kvtransfer.wire import Ready


class GrpcOutlet:
    """The `Outlet` of payloads in band. Raises TransferFailed on a block too large for a message."""

    line = None
    announces = False
    lends = False
    checksums = True

    def __init__(self, memory: BlockMemory, _taker_id: str) -> None:
        _check(memory)
        keep_heap()

    async def open(self, card: bytes) -> bytes:
        """Nothing is needed."""
        return b""

    def tag(self, batch: Batch) -> int:
        """There is nothing to know."""
        return 0

    async def carry(self, batch: Batch) -> None:
        """The message was all."""

    def close(self) -> None:
        """Nothing is held."""


class GrpcInlet:
    """The `Inlet` of payloads in band."""

    line = None
    card = b""
    place_bytes = 4 << 20
    max_places = 1
    needs_checksums = True

    def __init__(self, memory: BlockMemory, _source_id: str) -> None:
        _check(memory)
        keep_heap()
        self._memory = memory

    async def open(self, card: bytes) -> None:
        """Nothing is needed."""

    async def arrived(self, ready: Ready) -> None:
        """The payload is in the message."""

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy out of the message. Raises IndexError on a message without payload."""
        return [
            self._memory.write_summed(block_id, ready.payloads[position], ready.seed(position))
            for position, block_id in moves
        ]

    def done(self, ready: Ready) -> None:
        """The message is let go of by itself."""

    def close(self) -> None:
        """Nothing is held."""


def _check(memory: BlockMemory) -> None:
    try:
        check_block_bytes(memory.block_bytes)
    except ValueError as error:
        raise TransferFailed(str(error)) from None


# 1-4 MiB is where gRPC's throughput peaks.
GRPC = Carrier(name="grpc", outlet=GrpcOutlet, inlet=GrpcInlet, flow=Flow(window_bytes=16 << 20, message_bytes=2 << 20))
