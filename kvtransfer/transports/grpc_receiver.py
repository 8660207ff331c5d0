"""The decode pod's end of a bulk stream over gRPC: dials, reads blocks, gives credit, dials again.

Knows streams, greetings and delays; where a block goes is `Inbox`'s decision.

    dialling -> challenge, hello, welcome -> up -> lost (told once) -> dialling, after a delay

Invariant: what was registered on a lost stream is forgotten, and its credit never reaches the next one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets

import grpc

from pagewire.core.errors import PagewireError, TransferFailed
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.inbox import Inbox
from pagewire.kvtransfer.transport import Flow, ShipmentKey, Sink, StreamLost, TransferCounters, TransportTimes
from pagewire.kvtransfer.transports.grpc_stream import BROKEN, METHOD, check_block_bytes, why
from pagewire.kvtransfer.wire import Credit, MalformedMessage

log = logging.getLogger(__name__)

Call = grpc.aio.StreamStreamCall[bytes, bytes]


class GrpcReceiver:
    """The `Receiver` of a decode pod for one prefill pod; `run()` keeps the stream.

    `channel` goes to the prefill pod `sender_id`, has `CHANNEL_OPTIONS`, and stays the caller's. Raises ValueError on
    an empty secret, or a block too large for a message.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        pod_id: str,
        sender_id: str,
        secret: bytes,
        block_bytes: int,
        on_lost: StreamLost,
        flow: Flow | None = None,
        times: TransportTimes | None = None,
    ) -> None:
        check_block_bytes(block_bytes)
        self.sender_id = sender_id
        self.counters = TransferCounters()
        self._channel = channel
        self._greeter = Greeter(peer_id=pod_id, block_bytes=block_bytes, secret=secret)
        self._block_bytes = block_bytes
        self._on_lost = on_lost
        self._flow = flow or Flow()
        self._times = times or TransportTimes()
        self._inbox = Inbox(self.counters, self._credit)
        self._call: Call | None = None  # the stream that is up
        self._up = asyncio.Event()
        self._reason = "not dialled yet"
        self._credits: dict[ShipmentKey, int] = {}
        self._credited = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """True while a stream is up."""
        return self._call is not None

    @property
    def reason(self) -> str:
        """Why there is no stream: how the last attempt or stream ended; empty while one is up."""
        return self._reason

    async def connected(self, timeout_s: float) -> None:
        """Wait for a stream; raises TransferFailed with the reason when there is none in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise TransferFailed(f"no stream for blocks to {self.sender_id}: {self._reason}") from None

    def register(self, shipment_id: int, generation: int, sink: Sink) -> None:
        """Take blocks of this key; see `Receiver`."""
        if self._call is None:
            raise TransferFailed(f"no stream for blocks to {self.sender_id}: {self._reason}")
        self._inbox.register(ShipmentKey(shipment_id, generation), sink)

    def unregister(self, shipment_id: int, generation: int) -> None:
        """Drop what is held and what comes; see `Receiver`."""
        self._inbox.unregister(ShipmentKey(shipment_id, generation))

    def retry(self, shipment_id: int, generation: int) -> None:
        """Offer what waits again; see `Receiver`."""
        self._inbox.retry(ShipmentKey(shipment_id, generation))

    def drop(self, reason: str) -> None:
        """Give the stream up, as when the link says that the pod is gone; a new one is dialled."""
        if self._call is not None:
            self._reason = reason
            self._call.cancel()

    async def run(self) -> None:
        """Keep a stream until cancelled."""
        delay_s = self._times.reconnect_min_s
        while True:
            call: Call = self._channel.stream_stream(METHOD)()
            try:
                async with asyncio.timeout(self._times.connect_s):
                    await self._greet(call)
                delay_s = self._times.reconnect_min_s
                await self._carry(call)
            except (*BROKEN, PagewireError) as error:
                if self._reason != why(error):
                    self._reason = why(error)
                    log.warning("no stream for blocks to %s: %s", self.sender_id, self._reason)
                delay_s = min(delay_s * 2, self._times.reconnect_max_s)
            finally:
                call.cancel()
            # Jitter, so that a pod that comes back is not dialled by everybody in the same millisecond.
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))

    async def _greet(self, call: Call) -> None:
        challenge = wire.decode_challenge(await _read(call))
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        hello = self._greeter.hello(self.sender_id, challenge, nonce, self._flow.window_bytes)
        await call.write(wire.encode_hello(hello))
        self._greeter.check(self.sender_id, hello, challenge, wire.decode_welcome(await _read(call)))

    async def _carry(self, call: Call) -> None:
        """Read blocks and write credit until the stream ends; raises nothing but the caller's cancellation."""
        self._credits.clear()
        self._reason = ""
        self._call = call
        self._up.set()
        writer = asyncio.create_task(self._write_credit(call))
        try:
            await self._read_blocks(call)
        finally:
            self._call = None
            self._up.clear()
            self._reason = self._reason or "the process stops"
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            log.info("the stream for blocks from %s ended: %s", self.sender_id, self._reason)
            self._on_lost(self.sender_id, self._inbox.clear())

    async def _read_blocks(self, call: Call) -> None:
        try:
            while True:
                self._inbox.accept(wire.decode_blocks(await _read(call), self._block_bytes))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # grpc.aio raises this too when the call alone was cancelled, by `drop` or for a credit that failed.
            if task is None or task.cancelling():
                raise
        except BROKEN as error:
            self._reason = self._reason or why(error)
        except Exception as error:
            # A sink that raises is our own bug: end the stream loudly, so that its shipments are settled.
            log.exception("blocks from %s could not be placed", self.sender_id)
            self._reason = f"internal error: {error}"

    def _credit(self, credit: Credit) -> None:
        self._credits[credit.key] = self._credits.get(credit.key, 0) + credit.num_bytes
        self._credited.set()

    async def _write_credit(self, call: Call) -> None:
        try:
            while True:
                await self._credited.wait()
                self._credited.clear()
                while self._credits:
                    key = next(iter(self._credits))
                    await call.write(wire.encode_credit(Credit(key, self._credits.pop(key))))
        except BROKEN as error:
            self.drop(why(error))


async def _read(call: Call) -> bytes:
    """Return the next message; raises MalformedMessage at the end of the stream."""
    data = await call.read()
    if not isinstance(data, bytes):
        raise MalformedMessage(f"the sender closed it: {await call.details()}")
    return data
