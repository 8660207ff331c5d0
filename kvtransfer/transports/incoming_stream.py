"""One bulk stream that is up, at its taker: reads messages, has them placed, gives credit.

Knows messages, windows and delays; what is asked about a block is `Inbox`'s decision, how it gets here the carrier's,
and when to dial `StreamReceiver`'s. Invariant: what was being written for it is settled when `settled` has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import grpc

from pagewire.core.errors import PagewireError, StreamLost, TransferFailed
from pagewire.core.tasks import ended
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.carrier import Carrier, Inlet
from pagewire.kvtransfer.inbox import Inbox
from pagewire.kvtransfer.placer import Placer
from pagewire.kvtransfer.translation import Translation
from pagewire.kvtransfer.transport import BlockMemory, ShipmentKey, TransferCounters
from pagewire.kvtransfer.transports.line import GrpcLine
from pagewire.kvtransfer.transports.stream import BROKEN, lost_by, why
from pagewire.kvtransfer.wire import Credit, MalformedMessage, Ready

log = logging.getLogger(__name__)

CREDIT_DELAY_S = 0.005
HANG_UP_S = 1.0  # between the end of a line of its own and that of the call, where the source ends both

Call = grpc.aio.StreamStreamCall[bytes, bytes]


class IncomingStream:
    """The stream of `call`, once it was greeted and its inlet is open. `memory` is our pool in the parts that travel.

    The source may have `window_bytes` in flight; with more than twice as much it is not read any further. A message may
    take `place_s` seconds to arrive, and as long to place.
    """

    def __init__(
        self,
        call: Call,
        carrier: Carrier,
        inlet: Inlet,
        *,
        memory: BlockMemory,
        translation: Translation | None,
        counters: TransferCounters,
        window_bytes: int,
        place_s: float,
        write_s: float,
    ) -> None:
        self.carrier = carrier
        self.inbox = Inbox(memory.block_bytes, window_bytes, counters, self._credit, inlet.done)
        self.placer = Placer(self.inbox, inlet, memory, place_s, translation)
        self.reason = ""  # why it ended, for people
        self.error: PagewireError | None = None  # the same, by its name
        self.carrier_failed = False
        self._call = call
        self._line = inlet.line or GrpcLine(call)
        self._inlet = inlet
        self._block_bytes = memory.block_bytes
        self._max_blocks = max(1, window_bytes // memory.block_bytes)  # of a message
        self._window_bytes = window_bytes
        self._place_s = place_s
        self._write_s = write_s
        self._credits: dict[ShipmentKey, int] = {}
        self._credit_bytes = 0
        self._credit_timer: asyncio.TimerHandle | None = None
        self._credited = asyncio.Event()
        call.add_done_callback(lambda _: inlet.close())  # nothing else says so where messages have a line of their own
        self._placing = asyncio.create_task(self._place())
        self._crediting = asyncio.create_task(self._write_credit())

    def end(self, reason: str, error: PagewireError | None = None) -> None:
        """End it, by `error` or as a stream that is lost; the first reason stands."""
        self._note(reason, error or StreamLost(reason))
        self._call.cancel()

    def _note(self, reason: str, error: PagewireError) -> None:
        self.reason, self.error = self.reason or reason, self.error or error

    async def run(self) -> None:
        """Read until it ends; raises nothing but the caller's cancellation."""
        try:
            while True:
                message = await self._line.read()
                if message is None:
                    async with asyncio.timeout(HANG_UP_S if self._inlet.line else self._place_s):
                        reason = f"the source closed it: {await self._call.details()}"
                    return self._note(reason, StreamLost(reason))
                if wire.is_sums(message):
                    self.inbox.summed(wire.decode_sums(message, self._block_bytes, self._max_blocks))
                else:
                    await self._accept(wire.decode_ready(message, self._block_bytes, self._max_blocks))
                self.placer.wake()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # grpc.aio raises this too when the call alone was cancelled, by `end` or for a credit that failed.
            if task is None or task.cancelling():
                raise
        except (*BROKEN, TransferFailed) as error:
            self.carrier_failed = is_of_the_carrier(error) and not await self._is_ended_by_source(error)
            self._note(why(error), lost_by(error))
        finally:
            self._inlet.close()
            self._placing.cancel()
            self._crediting.cancel()

    async def settled(self) -> None:
        """Return when nothing is written for it any more and every claim is settled."""
        try:
            await ended(self._placing, self._crediting)
        finally:
            self.placer.give_up()

    async def _is_ended_by_source(self, error: BaseException) -> bool:
        """Whether a line that broke did so with its call: a socket is reset where its end had something unread."""
        if not isinstance(error, StreamLost):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANG_UP_S):
                await self._call.details()
        return self._call.done()

    async def _accept(self, ready: Ready) -> None:
        if self._inlet.needs_checksums and not ready.is_summed:
            raise MalformedMessage(f"{len(ready)} blocks without checksums")
        async with asyncio.timeout(self._place_s):
            await self._inlet.arrived(ready)
        self.inbox.accept(ready)

    async def _place(self) -> None:
        try:
            await self.placer.run()
        except TransferFailed as error:
            self.carrier_failed = True
            self.end(f"the carrier {self.carrier.name} failed: {error.message}", lost_by(error))
        except Exception as error:
            # A sink that raises is our own bug: end the stream loudly, so that its shipments are settled.
            log.exception("blocks could not be placed")
            self.end(f"internal error: {error}")

    def _credit(self, credit: Credit) -> None:
        """Give credit, by the quarter of a window or soon: a message of its own costs as much as half a payload's."""
        self._credits[credit.key] = self._credits.get(credit.key, 0) + credit.num_bytes
        self._credit_bytes += credit.num_bytes
        if self._credit_bytes >= self._window_bytes // 4:
            self._credited.set()
        elif self._credit_timer is None:
            self._credit_timer = asyncio.get_running_loop().call_later(CREDIT_DELAY_S, self._credited.set)

    async def _write_credit(self) -> None:
        try:
            while True:
                await self._credited.wait()
                self._credited.clear()
                self._credit_bytes = 0
                if self._credit_timer is not None:
                    self._credit_timer.cancel()
                    self._credit_timer = None
                while self._credits:
                    key = next(iter(self._credits))
                    # Credit is owed by the key: to a source that reads none of it and sends on, without bound.
                    async with asyncio.timeout(self._write_s):
                        await self._line.write(wire.encode_credit(Credit(key, self._credits.pop(key))))
        except (*BROKEN, TransferFailed) as error:
            self.end(why(error), lost_by(error))


async def read(call: Call) -> bytes:
    """Return the next message; raises MalformedMessage at the end of the stream."""
    data = await call.read()
    if not isinstance(data, bytes):
        raise MalformedMessage(f"the source closed it: {await call.details()}")
    return data


def is_of_the_carrier(error: BaseException) -> bool:
    """Return whether another carrier may fare better than the one that ended so."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code() is grpc.StatusCode.FAILED_PRECONDITION
    return isinstance(error, TransferFailed | TimeoutError) and not isinstance(error, MalformedMessage)
