"""The prefill pod's end of bulk streams over gRPC.

Knows streams, greetings and writes; what is sent next is `Outbox`'s decision.

    challenge, hello, welcome -> up, replacing an older stream of the same pod -> lost (told once)

Invariant: at most one stream per decode pod is up, and what was queued on a lost one is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

import grpc

from pagewire.core.errors import PagewireError, TransferFailed
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.outbox import Batch, Outbox
from pagewire.kvtransfer.transport import (
    BlockMemory,
    Flow,
    SentCallback,
    ShipmentKey,
    StreamLost,
    TransferCounters,
    TransportTimes,
)
from pagewire.kvtransfer.transports.grpc_stream import BROKEN, METHOD, check_block_bytes, why
from pagewire.kvtransfer.wire import MalformedMessage

log = logging.getLogger(__name__)

MAX_GREETING_BYTES = 1024
MESSAGE_BYTES = 2 << 20  # 1-4 MiB is where gRPC's throughput peaks

Context = grpc.aio.ServicerContext[bytes, bytes]


class _PeerStream:
    """One stream that is up."""

    def __init__(self, peer_id: str, outbox: Outbox) -> None:
        self.peer_id = peer_id
        self.outbox = outbox
        self.writing: ShipmentKey | None = None
        self.work = asyncio.Event()  # something was queued or credited
        self.written = asyncio.Condition()
        self.closing = asyncio.Event()
        self.reason = ""

    def close(self, reason: str) -> None:
        """End it; the first reason stands."""
        if not self.closing.is_set():
            self.reason = reason
            self.closing.set()


class GrpcSender:
    """The `Sender` of a prefill pod; `handler()` is what the pod's gRPC server adds.

    Raises ValueError on an empty secret, or a block too large for a message.
    """

    def __init__(
        self,
        *,
        pod_id: str,
        secret: bytes,
        memory: BlockMemory,
        on_lost: StreamLost,
        on_sent: SentCallback | None = None,
        message_bytes: int = MESSAGE_BYTES,
        times: TransportTimes | None = None,
    ) -> None:
        check_block_bytes(memory.block_bytes)
        self.counters = TransferCounters()
        self._greeter = Greeter(peer_id=pod_id, block_bytes=memory.block_bytes, secret=secret)
        self._memory = memory
        self._on_lost = on_lost
        self._on_sent = on_sent
        self._message_bytes = message_bytes
        self._times = times or TransportTimes()
        self._streams: dict[str, _PeerStream] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler of `Blocks.Stream`; its server should have `CHANNEL_OPTIONS`."""
        service, method = METHOD.strip("/").split("/")
        return grpc.method_handlers_generic_handler(
            service, {method: grpc.stream_stream_rpc_method_handler(self._serve)}
        )

    def is_connected(self, peer_id: str) -> bool:
        """True while that decode pod's stream is up."""
        return peer_id in self._streams

    def send(self, peer_id: str, shipment_id: int, generation: int, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, block id) pairs; see `Sender`."""
        key = ShipmentKey(shipment_id, generation)
        stream = self._streams.get(peer_id)
        if stream is None or stream.closing.is_set():
            raise TransferFailed(f"{peer_id} has no stream for blocks")
        if stream.outbox.is_fenced(key):
            raise TransferFailed(f"{key} to {peer_id} is fenced")
        stream.outbox.add(key, blocks)
        stream.work.set()

    async def fence(self, peer_id: str, shipment_id: int, generation: int) -> None:
        """Forget what is queued and wait for the message being written, `write_s` at most; see `Sender`."""
        key = ShipmentKey(shipment_id, generation)
        stream = self._streams.get(peer_id)
        if stream is None:
            return
        stream.outbox.purge(key)
        async with stream.written:
            await stream.written.wait_for(lambda: stream.writing != key)

    def drop(self, peer_id: str, reason: str) -> None:
        """Give a stream up, as when the link says that the pod is gone; no-op without one."""
        if stream := self._streams.get(peer_id):
            stream.close(reason)

    def close(self, reason: str) -> None:
        """End all streams."""
        for stream in list(self._streams.values()):
            stream.close(reason)

    async def _serve(self, _requests: object, context: Context) -> None:
        try:
            async with asyncio.timeout(self._times.connect_s):
                stream, proof = await self._greet(context)
        except BROKEN as error:
            log.warning("a stream for blocks did not come up: %s", why(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "greeting failed")
        except PagewireError as error:
            log.warning("a stream for blocks was refused: %s", error.message)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")
        if older := self._streams.get(stream.peer_id):
            self._forget(older, "the pod dialled again")
        self._streams[stream.peer_id] = stream  # before the welcome: whoever read that may have blocks sent at once
        try:
            async with asyncio.timeout(self._times.connect_s):
                await context.write(wire.encode_welcome(proof))
            await self._carry(stream, context)
        except BROKEN as error:
            stream.close(why(error))
        finally:
            self._forget(stream, "the server stops")

    async def _carry(self, stream: _PeerStream, context: Context) -> None:
        reader = asyncio.create_task(self._read_credit(stream, context))
        writer = asyncio.create_task(self._write_blocks(stream, context))
        try:
            await stream.closing.wait()
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    def _forget(self, stream: _PeerStream, reason: str) -> None:
        stream.close(reason)
        if self._streams.get(stream.peer_id) is stream:
            del self._streams[stream.peer_id]
            log.info("the stream for blocks to %s ended: %s", stream.peer_id, stream.reason)
            self._on_lost(stream.peer_id, stream.outbox.keys())

    async def _greet(self, context: Context) -> tuple[_PeerStream, bytes]:
        challenge = secrets.token_bytes(wire.NONCE_BYTES)
        await context.write(wire.encode_challenge(challenge))
        data = await context.read()
        if not isinstance(data, bytes) or len(data) > MAX_GREETING_BYTES:
            raise MalformedMessage("no hello")
        hello = wire.decode_hello(data)
        proof = self._greeter.answer(hello, challenge)
        try:
            message_bytes = min(self._message_bytes, hello.window_bytes // 2)
            flow = Flow(window_bytes=hello.window_bytes, message_bytes=message_bytes)
        except ValueError as error:
            raise MalformedMessage(str(error)) from None
        return _PeerStream(hello.peer_id, Outbox(self._memory.block_bytes, flow)), proof

    async def _read_credit(self, stream: _PeerStream, context: Context) -> None:
        try:
            while isinstance(data := await context.read(), bytes):
                stream.outbox.credit(wire.decode_credit(data))
                stream.work.set()
            stream.close("the receiver closed it")
        except BROKEN as error:
            stream.close(why(error))
        finally:
            stream.close("the receiver is gone")

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
                    await self._write(stream.peer_id, batch, context)
                finally:
                    stream.writing = None
                    async with stream.written:
                        stream.written.notify_all()
        except BROKEN as error:
            stream.close(why(error))
        except Exception as error:
            # A block id outside the pool is our own bug: end the stream loudly, so that its shipments are settled.
            log.exception("blocks for %s could not be sent", stream.peer_id)
            stream.close(f"internal error: {error}")
            raise

    async def _write(self, peer_id: str, batch: Batch, context: Context) -> None:
        payloads = [self._memory.read(block_id) for block_id in batch.block_ids]
        message = wire.encode_blocks(batch.key, batch.first_block, payloads)
        async with asyncio.timeout(self._times.write_s):
            await context.write(message)
        self.counters.messages += 1
        self.counters.blocks += len(payloads)
        self.counters.bytes += len(payloads) * self._memory.block_bytes
        if self._on_sent is not None:
            end = batch.first_block + len(batch.block_ids)
            self._on_sent(peer_id, batch.key, tuple(range(batch.first_block, end)))
