"""One bulk stream that is up, at its source: writes messages within the taker's credit, until it is over.

Knows messages and credit; what is sent next is `Outbox`'s decision, how the payload travels the carrier's, and who may
have a stream `StreamSender`'s. Invariant: when it is over neither we nor its carrier read our blocks for it any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import grpc

from pagewire.core.errors import TransferFailed, TransferTimeout
from pagewire.core.tasks import ended
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.carrier import Line, Outlet
from pagewire.kvtransfer.outbox import Batch, Outbox
from pagewire.kvtransfer.transport import BlockMemory, Flow, ShipmentKey, TransferCounters, TransportTimes
from pagewire.kvtransfer.transports.line import GrpcLine
from pagewire.kvtransfer.transports.stream import BROKEN, why
from pagewire.kvtransfer.wire import Sums

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]


class OutgoingStream:
    """The stream to `peer_id`, from its welcome on; `memory` is our pool in the parts that travel."""

    def __init__(
        self,
        peer_id: str,
        memory: BlockMemory,
        flow: Flow,
        outlet: Outlet,
        *,
        counters: TransferCounters,
        times: TransportTimes,
    ) -> None:
        self.peer_id = peer_id
        self.memory = memory
        self.outbox = Outbox(memory.block_bytes, flow)
        self.reason = ""
        self._sums_follow_bytes = flow.sums_follow_bytes
        self._outlet = outlet
        self._counters = counters
        self._times = times
        self._writing: ShipmentKey | None = None
        self._work = asyncio.Event()  # something was queued or credited
        self._changed = asyncio.Event()  # something was written or credited, or it is over; a new one each time
        self._closing = asyncio.Event()
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """True until it starts to close."""
        return not self._closing.is_set()

    def send(self, key: ShipmentKey, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, id) pairs of parts."""
        self.outbox.add(key, blocks)
        self._work.set()

    def close(self, reason: str) -> None:
        """End it; the first reason stands."""
        if self.is_open:
            self.reason = reason
            self._closing.set()

    def end(self, reason: str) -> None:
        """It is over: nothing is read for it any more."""
        self.close(reason)
        self._outlet.close()
        self._is_over = True
        self._note()

    async def quiet(self, key: ShipmentKey) -> None:
        """Return when nothing of that key is read any more."""
        while not self._is_over and self._is_reading(key):
            await self._changed.wait()

    async def run(self, context: Context) -> None:
        """Write and read until it closes; what it began has ended by then."""
        line = self._outlet.line or GrpcLine(context)
        reader = asyncio.create_task(self._read_credit(line))
        writer = asyncio.create_task(self._write_blocks(line))
        try:
            await self._closing.wait()
        finally:
            self.close("the server stops")
            reader.cancel()
            writer.cancel()
            self._outlet.close()
            await ended(reader, writer)

    def _is_reading(self, key: ShipmentKey) -> bool:
        return self._writing == key or (self._outlet.lends and self.outbox.in_flight(key) > 0)

    def _note(self) -> None:
        """Something changed for whoever waits for quiet."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _read_credit(self, line: Line) -> None:
        try:
            while (data := await line.read()) is not None:
                self.outbox.credit(wire.decode_credit(data))
                self._work.set()
                self._note()
            self.close("the taker closed it")
        except (*BROKEN, TransferFailed) as error:
            self.close(why(error))
        finally:
            self.close("the taker is gone")

    async def _write_blocks(self, line: Line) -> None:
        try:
            while True:
                batch = self.outbox.take()
                if batch is None:
                    self._work.clear()
                    await self._work.wait()
                    continue
                self._writing = batch.key
                try:
                    await self._write(batch, line)
                finally:
                    self._writing = None
                    self._note()
        except (*BROKEN, TransferFailed) as error:
            self.close(why(error))
        except Exception as error:
            # A block id outside the pool is our own bug: end the stream loudly, so that its shipments are settled.
            log.exception("blocks for %s could not be sent", self.peer_id)
            self.close(f"internal error: {error}")
            raise

    async def _write(self, batch: Batch, line: Line) -> None:
        async with asyncio.timeout(self._times.write_s):
            for message in self._messages(batch):
                await line.write(message)
        try:
            async with asyncio.timeout(self._times.carry_s):
                await self._outlet.carry(batch)
        except TimeoutError:
            raise TransferTimeout(f"a message was not carried within {self._times.carry_s} s") from None
        self._counters.messages += 1
        self._counters.blocks += len(batch.block_ids)
        self._counters.bytes += len(batch.block_ids) * self.memory.block_bytes

    def _messages(self, batch: Batch) -> Iterator[bytes]:
        """What a batch takes, each made when the one before it is written."""
        outlet, (key, _, block_ids, _), indices = self._outlet, batch, batch.indices
        size = self.memory.block_bytes
        blocks = [self.memory.read(block_id) for block_id in block_ids] if outlet.checksums else []
        if not outlet.announces:
            yield wire.encode_blocks(key, indices, blocks)
        elif outlet.checksums and len(blocks) * size >= self._sums_follow_bytes:
            yield wire.encode_ready(key, indices, size, block_ids, (), outlet.tag(batch), sums_follow=True)
            yield wire.encode_sums(Sums(key, indices, wire.checksums(key, indices, blocks)), size)
        else:
            sums = wire.checksums(key, indices, blocks) if outlet.checksums else ()
            yield wire.encode_ready(key, indices, size, block_ids, sums, outlet.tag(batch))
