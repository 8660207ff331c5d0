"""The taker's end towards one source: dials, greets, and keeps a bulk stream, by the best carrier that opens.

Knows greetings, carriers and delays; what goes on while a stream is up is `IncomingStream`'s.

    offered carriers -> dialling, the next carrier when one cannot be opened -> up -> lost (told once) -> dialling

Invariant: what was registered on a lost stream is forgotten, its credit never reaches the next one, and what was being
written for it is settled before there is a next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Sequence

import grpc

from pagewire.core.errors import PagewireError, PeerMismatch, StreamLost, TransferFailed, Unavailable
from pagewire.core.kv_layout import KVLayout
from pagewire.core.tasks import check_cancelled
from pagewire.kvtransfer import greeting_wire
from pagewire.kvtransfer.carrier import Carrier, Inlet
from pagewire.kvtransfer.greeting import Greeter
from pagewire.kvtransfer.translation import Translation
from pagewire.kvtransfer.transport import (
    BlockMemory,
    Flow,
    LostCallback,
    ShipmentKey,
    Sink,
    TransferCounters,
    TransportTimes,
)
from pagewire.kvtransfer.transports.incoming_stream import Call, IncomingStream, is_of_the_carrier, read
from pagewire.kvtransfer.transports.stream import BROKEN, METHOD, lost_by, order_of, why

log = logging.getLogger(__name__)

Dial = Callable[[], grpc.aio.Channel]


class _Otherwise(Exception):
    """The source's blocks lie, or travel, otherwise than this stream was prepared for."""


class StreamReceiver:
    """The `Receiver` of a taker for one source; `run()` keeps the stream.

    `dial` opens a channel to the pod `source_id`, with `CHANNEL_OPTIONS`: one for each stream, which shows the
    certificate of its time. `carriers` are tried in order; empty, nothing is dialled until `offer`. In what order and
    how many parts blocks come, the source says; it costs a second connection where we were not ready for that. Raises
    ValueError on an empty secret.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        pod_id: str,
        source_id: str,
        secret: bytes,
        memory: BlockMemory,
        on_lost: LostCallback,
        carriers: Sequence[Carrier] = (),
        layout: KVLayout | None = None,
        flow: Flow | None = None,
        times: TransportTimes | None = None,
    ) -> None:
        self.source_id = source_id
        self.counters = TransferCounters()
        self._dial = dial
        self._greeter = Greeter(peer_id=pod_id, block_bytes=memory.block_bytes, order=order_of(layout), secret=secret)
        self._memory = memory
        self._parts = memory  # as blocks of what travels, as the source's welcome said
        self._num_groups = 1
        self._layout = layout
        self._translation: Translation | None = None  # where the source's order is another, as its welcome said
        self._source_order = order_of(layout)
        self._on_lost = on_lost
        self._flow = flow
        self._times = times or TransportTimes()
        self._carriers = tuple(carriers)
        self._offered = asyncio.Event()
        self._stream: IncomingStream | None = None  # the one that is up
        self._up = asyncio.Event()
        self._reason = "not dialled yet"
        self._error: PagewireError | None = None  # the same, by its name
        self._sought_s = 0.0  # the loop's time at the latest offer or loss
        self.offer(carriers)

    @property
    def is_connected(self) -> bool:
        """True while a stream is up."""
        return self._stream is not None

    @property
    def num_groups(self) -> int:
        """In how many parts a block travels on the stream that is up."""
        return self._num_groups

    @property
    def transport(self) -> str:
        """The carrier of the stream that is up; empty without one."""
        stream = self._stream  # another thread may ask
        return stream.carrier.name if stream is not None else ""

    @property
    def is_fallback(self) -> bool:
        """True while blocks come by another carrier than the best that was offered, which has failed."""
        stream, best = self._stream, self._carriers[:1]
        return stream is not None and bool(best) and stream.carrier.name != best[0].name

    @property
    def reason(self) -> str:
        """Why there is no stream: how the last attempt or stream ended; empty while one is up."""
        return self._reason

    def offer(self, carriers: Sequence[Carrier]) -> None:
        """Take these from the next attempt on, the first that opens; without any there is none."""
        self._carriers = tuple(carriers)
        self._sought_s = asyncio.get_running_loop().time()
        if self._carriers:
            self._offered.set()
        else:
            self._offered.clear()

    async def connected(self, timeout_s: float) -> None:
        """Wait for a stream, until `timeout_s` after it was offered or the last one lost.

        Raises TransferFailed with the reason when there is none by then, PeerMismatch where the two ends must not be
        paired: at once to all who come later, for whom it is dialled on and on.
        """
        left_s = self._sought_s + timeout_s - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await self._up.wait()
        except TimeoutError:
            raise self._not_connected() from None

    def register(self, shipment_id: int, generation: int, sink: Sink) -> None:
        """Take blocks of this key; see `Receiver`."""
        if self._stream is None:
            raise self._not_connected()
        self._stream.inbox.register(ShipmentKey(shipment_id, generation), sink)

    def unregister(self, shipment_id: int, generation: int) -> None:
        """Drop what is held and what comes; see `Receiver`."""
        if self._stream is not None:
            self._stream.inbox.unregister(ShipmentKey(shipment_id, generation))

    def retry(self, shipment_id: int, generation: int) -> None:
        """Offer what waits again; see `Receiver`."""
        if self._stream is not None:
            self._stream.inbox.retry(ShipmentKey(shipment_id, generation))
            self._stream.placer.wake()

    def drop(self, reason: str) -> None:
        """Give the stream up, as when the link says that the pod is gone; see `Receiver`."""
        if self._stream is not None:
            self._stream.end(reason)

    async def run(self) -> None:
        """Keep a stream until cancelled."""
        times, now = self._times, asyncio.get_running_loop().time
        delay_s, turn, has_learned = times.reconnect_min_s, 0, False
        while True:
            check_cancelled()
            await self._offered.wait()
            carriers = self._carriers  # of this turn: others may be offered meanwhile, or none
            if not carriers:
                continue
            carrier, began_s = carriers[turn % len(carriers)], now()
            longer_s = min(delay_s * 2, times.reconnect_max_s)
            try:
                carrier_failed = await self._stream_by(carrier, is_preferred=turn == 0)
                turn, has_learned = turn + 1 if carrier_failed else 0, False
                # One that ends as soon as it is up, as where two claim one name, is not dialled without end.
                delay_s = times.reconnect_min_s if now() - began_s >= times.reconnect_max_s else longer_s
            except _Otherwise as error:
                if not has_learned:  # now we are ready for it
                    has_learned = True
                    continue
                self._note(f"the source says of its blocks, each time anew, {error}", PeerMismatch(str(error)))
                turn, delay_s, has_learned = 0, longer_s, False
            except (*BROKEN, PagewireError) as error:
                if self._reason != why(error):
                    log.warning("no stream for blocks to %s by %s: %s", self.source_id, carrier.name, why(error))
                self._note(why(error), lost_by(error))
                if is_of_the_carrier(error) and (turn + 1) % len(carriers):
                    turn += 1
                    continue
                turn, delay_s = 0, longer_s
            except Exception as error:  # our own bug: it costs this stream, not every one after it
                self._note(f"internal error: {error}", lost_by(error))
                log.exception("the stream for blocks from %s broke", self.source_id)
                turn, delay_s = 0, longer_s
            # Jitter, so that a pod that comes back is not dialled by everybody in the same millisecond.
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))

    async def _stream_by(self, carrier: Carrier, *, is_preferred: bool) -> bool:
        """Dial, greet and take blocks until the stream ends; True when its carrier failed.

        Raises _Otherwise, what a greeting breaks by, and what a carrier does that cannot be opened.
        """
        async with contextlib.AsyncExitStack() as ends:
            channel = self._dial()
            ends.push_async_callback(channel.close)
            inlet = carrier.inlet(self._landing, self.source_id)
            ends.callback(inlet.close)
            call: Call = channel.stream_stream(METHOD)()
            ends.callback(call.cancel)
            until_s = asyncio.get_running_loop().time() + self._times.connect_s
            challenge = await self._challenged(call, until_s)
            async with asyncio.timeout_at(until_s):
                window_bytes = await self._greet(call, challenge, carrier, inlet)
            check_cancelled()
            level = logging.INFO if is_preferred else logging.WARNING  # what was preferred has failed
            log.log(level, "blocks come from %s by %s, %s at a time", self.source_id, carrier.name, window_bytes)
            return await self._carry(self._begun(call, carrier, inlet, window_bytes))

    def _note(self, reason: str, error: PagewireError | None = None) -> None:
        """Why there is no stream, in words and by name; nothing while one is up."""
        self._reason, self._error = reason, error

    @property
    def _landing(self) -> BlockMemory:
        """What an inlet writes into."""
        return self._parts if self._translation is None else self._translation.staging

    def _not_connected(self) -> PeerMismatch | TransferFailed:
        kind = PeerMismatch if isinstance(self._error, PeerMismatch) else TransferFailed
        return kind(f"no stream for blocks to {self.source_id}: {self._reason}")

    async def _challenged(self, call: Call, until_s: float) -> bytes:
        """Return what the source begins with, whatever it is asked for: where it is silent no carrier has failed."""
        try:
            async with asyncio.timeout_at(until_s):
                return greeting_wire.decode_challenge(await read(call))
        except TimeoutError:
            raise Unavailable(f"{self.source_id} does not answer") from None

    async def _greet(self, call: Call, challenge: bytes, carrier: Carrier, inlet: Inlet) -> int:
        nonce = secrets.token_bytes(greeting_wire.NONCE_BYTES)
        window_bytes = (self._flow or carrier.flow).window_bytes
        hello = self._greeter.hello(
            self.source_id, challenge, nonce, window_bytes, carrier=carrier.name, card=inlet.card
        )
        await call.write(greeting_wire.encode_hello(hello))
        welcome = greeting_wire.decode_welcome(await read(call))
        self._greeter.check(self.source_id, hello, challenge, welcome)
        self._learn(welcome.order, welcome.num_groups)
        await inlet.open(welcome.card)
        return window_bytes

    def _learn(self, order: str, num_groups: int) -> None:
        """Blocks in another order than ours are staged, and come whole. What we were not ready for is dialled again."""
        if (order, num_groups) == (self._source_order, self._num_groups):
            return
        is_ours = order == order_of(self._layout)
        if not is_ours and num_groups > 1:
            raise PeerMismatch(f"blocks in the order {order!r} come in {num_groups} parts")
        if self._layout is not None and self._layout.num_layers % num_groups:
            raise PeerMismatch(f"{self._layout.num_layers} layers in {num_groups} parts")
        try:
            parts = self._memory.split(num_groups)
        except ValueError as error:
            raise PeerMismatch(str(error)) from None
        self._translation = None if is_ours else Translation(self._memory, self._layout, order)
        self._parts, self._num_groups, self._source_order = parts, num_groups, order
        raise _Otherwise(f"{order!r} in {num_groups} parts")

    def _begun(self, call: Call, carrier: Carrier, inlet: Inlet, window_bytes: int) -> IncomingStream:
        return IncomingStream(
            call,
            carrier,
            inlet,
            memory=self._parts,
            translation=self._translation,
            counters=self.counters,
            window_bytes=window_bytes,
            place_s=self._times.place_s,
            write_s=self._times.write_s,
        )

    async def _carry(self, stream: IncomingStream) -> bool:
        """Read and place until the stream ends; True when its carrier failed. Raises our own cancellation alone."""
        self._note("")
        self._stream = stream
        self._up.set()
        try:
            await stream.run()
        finally:
            self._stream = None
            self._up.clear()
            self._sought_s = asyncio.get_running_loop().time()
            reason = stream.reason or "the process stops"
            error = stream.error or StreamLost(reason)
            self._note(reason, error)
            log.info("the stream for blocks from %s ended: %s", self.source_id, reason)
            try:
                self._on_lost(self.source_id, stream.inbox.clear(), error)
            finally:
                await stream.settled()
        return stream.carrier_failed
