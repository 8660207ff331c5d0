"""The source's end of bulk streams.

Knows streams, greetings and writes; what is sent next is `Outbox`'s decision, how the payload travels the carrier's.

    challenge, hello, welcome -> up, replacing an older stream of the same pod -> lost (told once) -> over

Invariants: at most one stream per taker is up, and what was queued on a lost one is forgotten; a stream is over when
neither we nor its carrier read our blocks for it any more.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence

import grpc

from pagewire.core.errors import PagewireError, TransferFailed
from pagewire.core.kv_layout import KVLayout
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.carrier import Carrier, Outlet
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.outbox import Batch, Outbox
from pagewire.kvtransfer.transport import (
    BlockMemory,
    Flow,
    LostCallback,
    ShipmentKey,
    TransferCounters,
    TransportTimes,
)
from pagewire.kvtransfer.transports.stream import BROKEN, METHOD, ended, order_of, why
from pagewire.kvtransfer.wire import Hello, MalformedMessage, Welcome

log = logging.getLogger(__name__)

MAX_GREETING_BYTES = wire.MAX_CARD_BYTES + 2048

Context = grpc.aio.ServicerContext[bytes, bytes]


class _PeerStream:
    """One stream, from its welcome until it is over."""

    def __init__(self, peer_id: str, memory: BlockMemory, flow: Flow, outlet: Outlet) -> None:
        self.peer_id = peer_id
        self.memory = memory  # in the parts that travel
        self.outbox = Outbox(memory.block_bytes, flow)
        self.outlet = outlet
        self.writing: ShipmentKey | None = None
        self.work = asyncio.Event()  # something was queued or credited
        self.changed = asyncio.Condition()  # something was written or credited, or it is over
        self.closing = asyncio.Event()
        self.reason = ""
        self._is_over = False

    def close(self, reason: str) -> None:
        """End it; the first reason stands."""
        if not self.closing.is_set():
            self.reason = reason
            self.closing.set()

    async def note(self, *, is_over: bool = False) -> None:
        """Something changed for whoever waits for quiet."""
        self._is_over |= is_over
        async with self.changed:
            self.changed.notify_all()

    async def quiet(self, key: ShipmentKey) -> None:
        """Return when nothing of that key is read any more."""
        async with self.changed:
            await self.changed.wait_for(lambda: self._is_over or not self._is_reading(key))

    def _is_reading(self, key: ShipmentKey) -> bool:
        return self.writing == key or (self.outlet.lends and self.outbox.in_flight(key) > 0)


class StreamSender:
    """The `Sender` of a source; `handler()` is what the pod's gRPC server adds. Raises ValueError on an empty secret.

    A block travels in `num_groups` parts to takers whose blocks lie as ours do, and whole to others. `message_bytes` is
    how large a message is aimed at, where the carrier's own measure is not wanted.
    """

    def __init__(
        self,
        *,
        pod_id: str,
        secret: bytes,
        memory: BlockMemory,
        on_lost: LostCallback,
        carriers: Sequence[Carrier],
        layout: KVLayout | None = None,
        message_bytes: int | None = None,
        times: TransportTimes | None = None,
        num_groups: int = 1,
    ) -> None:
        memory.split(num_groups)  # raises now what it would raise to takers
        self.counters = TransferCounters()
        self._num_groups = num_groups
        self._greeter = Greeter(peer_id=pod_id, block_bytes=memory.block_bytes, order=order_of(layout), secret=secret)
        self._memory = memory
        self._carriers = {carrier.name: carrier for carrier in carriers}
        self._on_lost = on_lost
        self._message_bytes = message_bytes
        self._times = times or TransportTimes()
        self._streams: dict[str, _PeerStream] = {}
        self._not_over: set[_PeerStream] = set()  # what is up, and what was and may still be read for
        self._is_closed = False

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler of `Blocks.Stream`; its server should have `CHANNEL_OPTIONS`."""
        service, method = METHOD.strip("/").split("/")
        return grpc.method_handlers_generic_handler(
            service, {method: grpc.stream_stream_rpc_method_handler(self._serve)}
        )

    def is_connected(self, peer_id: str) -> bool:
        """True while that taker's stream is up."""
        return peer_id in self._streams

    def num_groups(self, peer_id: str) -> int:
        """In how many parts a block travels to that taker; see `Sender`."""
        stream = self._streams.get(peer_id)
        return self._memory.block_bytes // stream.memory.block_bytes if stream is not None else 1

    def send(self, peer_id: str, shipment_id: int, generation: int, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, id) pairs of parts; see `Sender`."""
        key = ShipmentKey(shipment_id, generation)
        stream = self._streams.get(peer_id)
        if stream is None or stream.closing.is_set():
            raise TransferFailed(f"{peer_id} has no stream for blocks")
        if stream.outbox.is_fenced(key):
            raise TransferFailed(f"{key} to {peer_id} is fenced")
        stream.outbox.add(key, blocks)
        stream.work.set()

    async def fence(self, peer_id: str, shipment_id: int, generation: int) -> None:
        """Forget what is queued; wait for the message being written and, for what is lent, for credit; see `Sender`.

        A taker that keeps what it was lent for longer than `credit_s` loses its stream.
        """
        key = ShipmentKey(shipment_id, generation)
        streams = [stream for stream in self._not_over if stream.peer_id == peer_id]
        for stream in streams:
            stream.outbox.purge(key)
        for stream in streams:
            try:
                async with asyncio.timeout(self._times.credit_s):
                    await stream.quiet(key)
            except TimeoutError:
                stream.close(f"{key} was fenced, and not given back within {self._times.credit_s} s")
                await stream.quiet(key)

    def drop(self, peer_id: str, reason: str) -> None:
        """Give a stream up, as when the link says that the pod is gone; no-op without one."""
        if stream := self._streams.get(peer_id):
            stream.close(reason)

    def close(self, reason: str) -> None:
        """End all streams; one that is asked for later is refused."""
        self._is_closed = True
        for stream in list(self._streams.values()):
            stream.close(reason)

    async def _serve(self, _requests: object, context: Context) -> None:
        try:
            stream, welcome = await self._greet(context)
        except BROKEN as error:
            log.warning("a stream for blocks did not come up: %s", why(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "greeting failed")
        except TransferFailed as error:
            log.warning("a stream for blocks has no carrier: %s", error.message)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)
        except PagewireError as error:
            log.warning("a stream for blocks was refused: %s", error.message)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")
        if self._is_closed:
            stream.outlet.close()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the pod stops")
        if older := self._streams.get(stream.peer_id):
            self._forget(older, "the pod dialled again")
        self._not_over.add(stream)
        self._streams[stream.peer_id] = stream  # before the welcome: whoever read that may have blocks sent at once
        try:
            async with asyncio.timeout(self._times.connect_s):
                await context.write(wire.encode_welcome(welcome))
            await self._carry(stream, context)
        except BROKEN as error:
            stream.close(why(error))
        finally:
            stream.outlet.close()
            self._not_over.discard(stream)
            self._forget(stream, "the server stops")
            await stream.note(is_over=True)

    async def _carry(self, stream: _PeerStream, context: Context) -> None:
        reader = asyncio.create_task(self._read_credit(stream, context))
        writer = asyncio.create_task(self._write_blocks(stream, context))
        try:
            await stream.closing.wait()
        finally:
            stream.close("the server stops")
            reader.cancel()
            writer.cancel()
            stream.outlet.close()
            await ended(reader, writer)

    def _forget(self, stream: _PeerStream, reason: str) -> None:
        stream.close(reason)
        if self._streams.get(stream.peer_id) is stream:
            del self._streams[stream.peer_id]
            log.info("the stream for blocks to %s ended: %s", stream.peer_id, stream.reason)
            self._on_lost(stream.peer_id, stream.outbox.keys())

    async def _greet(self, context: Context) -> tuple[_PeerStream, Welcome]:
        challenge = secrets.token_bytes(wire.NONCE_BYTES)
        async with asyncio.timeout(self._times.connect_s):
            await context.write(wire.encode_challenge(challenge))
            data = await context.read()
        if not isinstance(data, bytes) or len(data) > MAX_GREETING_BYTES:
            raise MalformedMessage("no hello")
        hello = wire.decode_hello(data)
        self._greeter.admit(hello, challenge)
        carrier = self._carriers.get(hello.carrier)
        if carrier is None:
            raise TransferFailed(f"the carrier {hello.carrier!r} is not one of {sorted(self._carriers)}")
        flow = self._flow(carrier, hello.window_bytes)
        num_groups = self._num_groups if hello.order == self._greeter.order else 1
        memory = self._memory.split(num_groups)
        outlet = carrier.outlet(memory, hello.peer_id)
        try:
            card = await self._open(outlet, hello)
            welcome = self._greeter.welcome(hello, challenge, card, num_groups)
        except BaseException:
            outlet.close()
            raise
        log.info("blocks go to %s by %s", hello.peer_id, carrier.name)
        return _PeerStream(hello.peer_id, memory, flow, outlet), welcome

    async def _open(self, outlet: Outlet, hello: Hello) -> bytes:
        try:
            async with asyncio.timeout(self._times.connect_s):
                return await outlet.open(hello.card)
        except TimeoutError:
            raise TransferFailed(f"{hello.carrier} to {hello.peer_id} did not open in time") from None

    def _flow(self, carrier: Carrier, window_bytes: int) -> Flow:
        message_bytes = min(self._message_bytes or carrier.flow.message_bytes, window_bytes // 2)
        try:
            return Flow(window_bytes=window_bytes, message_bytes=message_bytes)
        except ValueError as error:
            raise MalformedMessage(str(error)) from None

    async def _read_credit(self, stream: _PeerStream, context: Context) -> None:
        try:
            while isinstance(data := await context.read(), bytes):
                stream.outbox.credit(wire.decode_credit(data))
                stream.work.set()
                await stream.note()
            stream.close("the taker closed it")
        except BROKEN as error:
            stream.close(why(error))
        finally:
            stream.close("the taker is gone")

    async def _write_blocks(self, stream: _PeerStream, context: Context) -> None:
        try:
            while True:
                batch = stream.outbox.take()
                if batch is None:
                    stream.work.clear()
                    await stream.work.wait()
                    continue
                stream.writing = batch.key
                try:
                    await self._write(stream, batch, context)
                finally:
                    stream.writing = None
                    await stream.note()
        except (*BROKEN, TransferFailed) as error:
            stream.close(why(error))
        except Exception as error:
            # A block id outside the pool is our own bug: end the stream loudly, so that its shipments are settled.
            log.exception("blocks for %s could not be sent", stream.peer_id)
            stream.close(f"internal error: {error}")
            raise

    async def _write(self, stream: _PeerStream, batch: Batch, context: Context) -> None:
        message = self._message(batch, stream.memory, stream.outlet)
        async with asyncio.timeout(self._times.write_s):
            await context.write(message)
        await stream.outlet.carry(batch)
        self.counters.messages += 1
        self.counters.blocks += len(batch.block_ids)
        self.counters.bytes += len(batch.block_ids) * stream.memory.block_bytes

    def _message(self, batch: Batch, memory: BlockMemory, outlet: Outlet) -> bytes:
        blocks = [memory.read(block_id) for block_id in batch.block_ids] if outlet.checksums else []
        if not outlet.announces:
            return wire.encode_blocks(batch.key, batch.indices, blocks)
        sums = wire.checksums(batch.key, batch.indices, blocks) if outlet.checksums else []
        tag = outlet.tag(batch)
        return wire.encode_ready(batch.key, batch.indices, memory.block_bytes, batch.block_ids, sums, tag)
