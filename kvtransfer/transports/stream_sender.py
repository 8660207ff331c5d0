"""The source's end of bulk streams: greets takers, and keeps one stream to each.

Knows greetings and carriers; what goes on while a stream is up is `OutgoingStream`'s.

    challenge, hello, welcome -> up, replacing an older stream of the same pod -> lost (told once) -> over

Invariant: at most one stream per taker is up, and what was queued on a lost one is forgotten.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Sequence

import grpc

from pagewire.core.errors import PagewireError, PeerMismatch, StreamLost, TransferFailed
from pagewire.core.kv_layout import KVLayout
from pagewire.kvtransfer import greeting_wire
from pagewire.kvtransfer.carrier import Carrier, Outlet
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.greeting_wire import Hello, Welcome
from pagewire.kvtransfer.transport import (
    BlockMemory,
    Flow,
    LostCallback,
    ShipmentKey,
    TransferCounters,
    TransportTimes,
)
from pagewire.kvtransfer.transports.outgoing_stream import Context, OutgoingStream
from pagewire.kvtransfer.transports.stream import BROKEN, METHOD, MISMATCH, order_of, why
from pagewire.kvtransfer.wire import MalformedMessage

log = logging.getLogger(__name__)

MAX_GREETING_BYTES = greeting_wire.MAX_CARD_BYTES + 2048


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
        carriers: Sequence[Carrier],
        on_lost: LostCallback | None = None,
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
        self._streams: dict[str, OutgoingStream] = {}
        self._not_over: set[OutgoingStream] = set()  # what is up, and what was and may still be read for
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
        if stream is None or not stream.is_open:
            raise TransferFailed(f"{peer_id} has no stream for blocks")
        if stream.outbox.is_fenced(key):
            raise TransferFailed(f"{key} to {peer_id} is fenced")
        stream.send(key, blocks)

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
        except PeerMismatch as error:
            log.warning("a stream for blocks was refused: %s", error.message)
            await context.abort(MISMATCH, error.message)
        except PagewireError as error:
            log.warning("a stream for blocks was refused: %s", error.message)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")
        if self._is_closed:
            stream.end("the pod stops")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the pod stops")
        if older := self._streams.get(stream.peer_id):
            self._forget(older, "the pod dialled again")
        self._not_over.add(stream)
        self._streams[stream.peer_id] = stream  # before the welcome: whoever read that may have blocks sent at once
        try:
            async with asyncio.timeout(self._times.connect_s):
                await context.write(greeting_wire.encode_welcome(welcome))
            await stream.run(context)
        except BROKEN as error:
            stream.close(why(error))
        finally:
            stream.end("the server stops")
            self._not_over.discard(stream)
            self._forget(stream, stream.reason)
            context.set_code(grpc.StatusCode.UNAVAILABLE)  # a status that is OK carries no words
            context.set_details(stream.reason)

    def _forget(self, stream: OutgoingStream, reason: str) -> None:
        stream.close(reason)
        if self._streams.get(stream.peer_id) is stream:
            del self._streams[stream.peer_id]
            log.info("the stream for blocks to %s ended: %s", stream.peer_id, stream.reason)
            if self._on_lost is not None:
                self._on_lost(stream.peer_id, stream.outbox.keys(), StreamLost(stream.reason))

    async def _greet(self, context: Context) -> tuple[OutgoingStream, Welcome]:
        challenge = secrets.token_bytes(greeting_wire.NONCE_BYTES)
        async with asyncio.timeout(self._times.connect_s):
            await context.write(greeting_wire.encode_challenge(challenge))
            data = await context.read()
        if not isinstance(data, bytes) or len(data) > MAX_GREETING_BYTES:
            raise MalformedMessage("no hello")
        hello = greeting_wire.decode_hello(data)
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
        stream = OutgoingStream(hello.peer_id, memory, flow, outlet, counters=self.counters, times=self._times)
        return stream, welcome

    async def _open(self, outlet: Outlet, hello: Hello) -> bytes:
        try:
            async with asyncio.timeout(self._times.connect_s):
                return await outlet.open(hello.card)
        except TimeoutError:
            raise TransferFailed(f"{hello.carrier} to {hello.peer_id} did not open in time") from None

    def _flow(self, carrier: Carrier, window_bytes: int) -> Flow:
        message_bytes = min(self._message_bytes or carrier.flow.message_bytes, window_bytes // 2)
        try:
            return dataclasses.replace(carrier.flow, window_bytes=window_bytes, message_bytes=message_bytes)
        except ValueError as error:
            raise MalformedMessage(str(error)) from None
