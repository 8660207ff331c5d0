"""One shipment on its way in, with everything it touches: link, bulk stream, engine.

Turns frames into events of the `IncomingShipment` and carries out its effects. Decides nothing itself. Invariant:
`handed_over` resolves exactly once, and afterwards no byte of this shipment is written into the pool.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pagewire.core.clock import Clock
from pagewire.core.engine_messages import Bind, Bound
from pagewire.core.errors import EngineFailed, PagewireError, PrefillLost
from pagewire.core.messages import (
    ChunkReady,
    Fence,
    Fenced,
    FetchReady,
    FirstToken,
    Landed,
    Resend,
    RunAccepted,
    ShipmentFailed,
    ShipmentRefused,
)
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.core.trace_context import TraceContext
from pagewire.kvtransfer import effects as fx
from pagewire.kvtransfer.intake import Intake
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.transport import Receiver
from pagewire.serving.link import Link

log = logging.getLogger(__name__)

SourceMessage = RunAccepted | ShipmentRefused | ChunkReady | FirstToken | FetchReady | ShipmentFailed | Fenced


class Delivery:
    """Carries one shipment to its end. `on_first_token` hears of the first token before its KV is here."""

    def __init__(
        self,
        shipment: IncomingShipment,
        *,
        link: Link,
        receiver: Receiver,
        bind: Callable[[Bind], Awaitable[Bound]],
        clock: Clock,
        watch: Stopwatch,
        on_first_token: Callable[[FirstToken], None],
        trace: TraceContext | None = None,
    ) -> None:
        self.shipment = shipment
        self.trace = trace  # what is below this shipment's span
        self.link = link
        self.first_token: FirstToken | None = None
        self.error: PagewireError | None = None  # what the source said of a shipment that it did not make
        self.answered_s: float | None = None  # seconds from the question to its first answer
        self.handed_over: asyncio.Future[fx.HandOver] = asyncio.get_running_loop().create_future()
        self.transport = receiver.transport  # the name of what carries it
        self._receiver = receiver
        self._bind = bind
        self._clock = clock
        self._watch = watch
        self._on_first_token = on_first_token
        self._heard = receiver.counters.messages  # of all shipments, before this one
        self.asked_s = clock.now()
        self.ended_s: float | None = None
        self._binding: asyncio.Task[None] | None = None
        self._key = (shipment.shipment_id, shipment.generation)
        receiver.register(*self._key, Intake(shipment, clock, self._from_intake))

    @property
    def key(self) -> tuple[str, int]:
        """The names that the frames of this shipment carry."""
        return (self.shipment.request_id, self.shipment.generation)

    @property
    def outcome(self) -> fx.Outcome | None:
        """How it ended; None while it is open."""
        return self.handed_over.result().outcome if self.handed_over.done() else None

    @property
    def kept_blocks(self) -> int:
        """How many blocks from the shipment's first on are here and stay."""
        return self.handed_over.result().kept_blocks if self.handed_over.done() else 0

    @property
    def cause(self) -> str:
        """The machine-readable cause of its loss, "" unless it was lost.

        A pod whose engine broke is lost to us as one that is gone is; what broke it, its own log says.
        """
        return self._error_cause if self.outcome is fx.Outcome.LOST else ""

    @property
    def refusal(self) -> str:
        """The same of a shipment that its source refused."""
        return self._error_cause if self.outcome is fx.Outcome.REFUSED else ""

    @property
    def _error_cause(self) -> str:
        error = self.error or self.shipment.error
        return error.cause if error is not None and type(error) is not EngineFailed else PrefillLost.cause

    @property
    def why(self) -> str:
        """Why it did not land, for people."""
        if self.error is not None:
            return self.error.message
        return self.shipment.error.message if self.shipment.error is not None else "the link is down"

    def on_message(self, message: SourceMessage) -> None:
        """Take a frame of this shipment."""
        now_s = self._clock.now()
        if self.answered_s is None:
            self.answered_s = now_s - self.asked_s
        shipment = self.shipment
        match message:
            case RunAccepted():
                self._act(shipment.accepted())
            case ShipmentRefused():
                self.error = message.error.error()
                self._act(shipment.refused(self.error))
            case ChunkReady():
                self._watch.stamp(Phase.FIRST_CHUNK_READY, now_s)
                self._act(shipment.chunk_ready(message.first_block, message.num_blocks, now_s, message.group))
            case FirstToken():
                if self.first_token is None and shipment.is_open:
                    self._watch.stamp(Phase.FIRST_TOKENS_RECEIVED, now_s)
                    self.first_token = message
                    self._on_first_token(message)
                self._act(shipment.first_token(message.num_blocks, now_s))
            case FetchReady():
                self._act(shipment.fetch_ready(message.num_blocks, now_s))
            case ShipmentFailed():
                self.error = message.error.error()
                self._act(shipment.prefill_failed(self.error))
            case Fenced():
                self._act(shipment.fenced())

    def peer_lost(self) -> None:
        """The link is gone."""
        self._act(self.shipment.peer_lost())

    def stream_lost(self, error: PagewireError) -> None:
        """The bulk stream is gone, by `error`."""
        self._act(self.shipment.stream_lost(error, self._clock.now()))

    def cancel(self) -> None:
        """Nobody wants it any more; `handed_over` resolves once the prefill pod has stopped."""
        self._act(self.shipment.cancel(self._clock.now()))

    def tick(self) -> None:
        """Look at the clock. A stream on which nothing at all came while blocks were due is given up with the shipment:
        the link stands and would have told of a pod that is gone, so it is the stream that lets nothing through.
        """
        shipment = self.shipment
        was_due = shipment.is_open and shipment.manifest is not None
        self._act(shipment.expired(self._clock.now()))
        if was_due and not shipment.is_open and self._receiver.counters.messages == self._heard:
            self._receiver.drop(f"nothing came while blocks of {shipment.request_id} were due")

    def _from_intake(self, _shipment: IncomingShipment, effects: fx.Effects) -> None:
        self._act(effects)

    def _act(self, effects: fx.Effects) -> None:
        names: dict[str, Any] = {"request_id": self.shipment.request_id, "generation": self.shipment.generation}
        for effect in effects:
            match effect:
                case fx.AskBind():
                    self._binding = asyncio.create_task(self._bind_blocks(effect.num_blocks, self._binding))
                case fx.AskResend():
                    self.link.say(Resend(**names, **dataclasses.asdict(effect)))
                case fx.Detach():
                    self._receiver.unregister(*self._key)
                case fx.SendFence():
                    self.link.say(Fence(**names))
                case fx.SendLanded():
                    self._watch.stamp(Phase.LAST_BLOCK_VERIFIED, self._clock.now())
                    self.link.say(Landed(**names))
                case fx.HandOver():
                    self.shipment.close()
                    self._on_first_token = unheard  # whoever listens holds this: neither shall keep the other
                    self.ended_s = self._clock.now()
                    self.handed_over.set_result(effect)

    async def _bind_blocks(self, num_blocks: int, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before  # the table only grows
        try:
            block_ids = (await self._bind(Bind(request_id=self.shipment.request_id, num_blocks=num_blocks))).block_ids
        except EngineFailed:
            block_ids = ()  # gone with the engine: there is nothing to write into
        self._act(self.shipment.bound(block_ids))
        if self.shipment.is_open:
            self._receiver.retry(*self._key)


def unheard(_message: FirstToken) -> None:
    """Nobody hears of first tokens of a shipment that is over."""
