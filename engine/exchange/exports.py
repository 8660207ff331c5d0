"""All that a pod ships: prompts that it builds and cached blocks that others fetch, by one mechanism.

Turns frames, clock and losses into events of each `OutgoingShipment` and carries out the effects. Knows nothing of how
blocks come to be. Invariants: every `Fetch` is answered; every export that was opened ends in exactly one release.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine

from pagewire.core.clock import Clock
from pagewire.core.engine_messages import Hold
from pagewire.core.errors import (
    DeadlineExceeded,
    EngineFailed,
    ErrorInfo,
    InvalidRequest,
    LeaseExpired,
    Overloaded,
    PagewireError,
    TransferFailed,
    TransferTimeout,
)
from pagewire.core.messages import Fence, Fenced, Fetch, Landed, Resend, Run, ShipmentRefused
from pagewire.core.sequence_spec import check_id
from pagewire.core.trace_context import TraceContext
from pagewire.engine.exchange.export import Export, ExportKey
from pagewire.engine.exchange.permits import Permits
from pagewire.engine.running_engine import RunningEngine
from pagewire.kvtransfer import effects as fx
from pagewire.kvtransfer.lease import LeaseTable
from pagewire.kvtransfer.outgoing import OutgoingShipment, OutgoingState
from pagewire.kvtransfer.transport import Sender
from pagewire.serving.link import Link

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
LANDING_GRACE_S = 5.0  # longer than a taker waits by the same setting, its fence and its first tick included


class Exports:
    """The outgoing shipments of one pod. `max_exports` bounds them; `check_fetch` raises why nobody may fetch
    now; `on_end` hears of each that is over.

    What is computed and has not landed `landing_s` later is not held any longer: a taker that is alive and does not
    take would keep it until the request's deadline. `trace_of` reads a traceparent, None where nothing is traced.
    """

    def __init__(
        self,
        engine: RunningEngine,
        sender: Sender,
        permits: Permits,
        clock: Clock,
        *,
        max_exports: int,
        landing_s: float,
        check_fetch: Callable[[], None],
        on_end: Callable[[Export], None],
        trace_of: Callable[[str], TraceContext | None],
    ) -> None:
        self._engine = engine
        self._sender = sender
        self._permits = permits
        self._clock = clock
        self._max_exports = max_exports
        self._landing_s = landing_s + LANDING_GRACE_S
        self._check_fetch = check_fetch
        self._on_end = on_end
        self._trace_of = trace_of
        self._exports: dict[ExportKey, Export] = {}
        self._leases: LeaseTable[ExportKey] = LeaseTable()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.counters = Counter(fetches=0, fetched_blocks=0, failed=0, lease_expired=0)

    def __len__(self) -> int:
        return len(self._exports)

    def all(self) -> list[Export]:
        """Return what is open."""
        return list(self._exports.values())

    @property
    def num_orphaned(self) -> int:
        """What is still held though its time is over or its taker's link is down; in health it ends within seconds."""
        now_s = self._clock.now()
        return sum(
            export.deadline_s <= now_s or not export.link.is_up or export.shipment.outcome is fx.Outcome.LOST
            for export in self.all()
        )

    async def wait_idle(self) -> None:
        """Return when nothing is held for anybody."""
        await self._idle.wait()

    # ------------------------------------------------------------------------------------------------- their beginning

    def shipment(self, link: Link, asked: Run | Fetch, *, ships: bool = True) -> OutgoingShipment:
        """Return the shipment that `asked` begins, its ticket spent; raises why it is not taken. Holds nothing yet."""
        request_id = asked.spec.request_id if isinstance(asked, Run) else asked.request_id
        key = (link.peer.peer_id, request_id, asked.generation)
        check_id(request_id)
        if len(self._exports) >= self._max_exports:
            raise Overloaded(f"{len(self._exports)} shipments are held already", retry_after_s=RETRY_AFTER_S)
        if key in self._exports:
            raise InvalidRequest(f"shipment {key} is here already", field="generation")
        if not asked.lease_s > 0:
            raise InvalidRequest(f"a lease of {asked.lease_s} s", field="lease_s")
        self._permits.spend(asked, link.peer.peer_id)
        return OutgoingShipment(
            request_id=request_id,
            generation=asked.generation,
            shipment_id=asked.shipment_id,
            peer_id=link.peer.peer_id,
            first_block=asked.first_block,
            ships=ships,
            num_groups=self._sender.num_groups(link.peer.peer_id),
        )

    def open(self, export: Export, lease_s: float) -> None:
        """Hold from now on what the export's engine id holds."""
        self._idle.clear()
        self._exports[export.key] = export
        self._leases.grant(export.key, export.link.peer.peer_id, lease_s, self._clock.now())

    def _on_fetch(self, link: Link, fetch: Fetch) -> None:
        try:
            if not fetch.hashes:
                raise InvalidRequest("a fetch of no blocks", field="hashes")
            self._check_fetch()
            shipment = self.shipment(link, fetch)
        except PagewireError as error:
            log.info("fetch %s refused: %s", fetch.request_id, error.message, extra={"request_id": fetch.request_id})
            refused = ShipmentRefused(
                request_id=fetch.request_id, generation=fetch.generation, error=ErrorInfo.of(error)
            )
            link.say(refused)
            return
        self.counters["fetches"] += 1
        export = Export(
            link=link,
            request_id=fetch.request_id,
            generation=fetch.generation,
            engine_id=f"fetch/{fetch.request_id}/{link.peer.peer_id}/{fetch.generation}",
            shipment=shipment,
            deadline_s=self._clock.now() + fetch.deadline_s,
            hashes=fetch.hashes,
            opened_s=self._clock.now(),
            trace=self._trace_of(fetch.traceparent),
        )
        self.open(export, fetch.lease_s)
        self._spawn(self._serve(export, fetch))

    async def _serve(self, export: Export, fetch: Fetch) -> None:
        shipment = export.shipment
        try:
            held = await self._engine.hold(Hold(request_id=export.engine_id, hashes=fetch.hashes))
        except PagewireError as error:  # it is gone, or cannot be asked for so many
            self.fail(export, ErrorInfo.of(error))
            return
        self.computed(export, is_finished=False)  # what is cached was computed long ago
        if shipment.state is OutgoingState.SHIPPING and not held.block_ids:
            export.say_ready(fx.Announce(first_block=fetch.first_block, num_blocks=0))
            self.computed(export, is_finished=True)
            return
        self.counters["fetched_blocks"] += len(held.block_ids)
        self.act(export, shipment.chunk_done(fetch.first_block, held.block_ids))

    # ---------------------------------------------------------------------------------------------------- from outside

    def renew(self, link: Link) -> None:
        """A taker showed a sign of life: any frame is one."""
        self._leases.renew(link.peer.peer_id, self._clock.now())

    def on_message(self, link: Link, message: Fetch | Landed | Resend | Fence) -> None:
        """Take a frame of a taker."""
        match message:
            case Fetch():
                self._on_fetch(link, message)
            case Landed() | Resend() | Fence():
                export = self._exports.get((link.peer.peer_id, message.request_id, message.generation))
                if export is not None and export.link is link:
                    self._on_word(export, message)
                elif isinstance(message, Fence):  # ended already; the question still gets its answer
                    link.say(Fenced(request_id=message.request_id, generation=message.generation))

    def _on_word(self, export: Export, message: Landed | Resend | Fence) -> None:
        match message:
            case Landed():
                self.act(export, export.shipment.landed())
            case Resend():
                self.act(export, export.shipment.resend(message.first_block, message.num_blocks, message.group))
            case Fence():
                self.act(export, export.shipment.fence())

    def link_lost(self, link: Link) -> None:
        """A broken link ends its shipments on both sides: the taker resumes from what landed."""
        for export in self.all():
            if export.link is link:
                self.act(export, export.shipment.peer_lost())

    def tick(self) -> None:
        """Look at the clock: leases and deadlines end."""
        now_s = self._clock.now()
        for key in self._leases.expired(now_s):
            export = self._exports[key]
            silent = LeaseExpired(f"no sign of life from {export.link.peer.peer_id} for the length of its lease")
            log.warning("%s: %s", export.request_id, silent.message, extra={"request_id": export.request_id})
            self.counters[silent.cause] += 1
            if export.shipment.state is OutgoingState.SHIPPING:
                export.say_failed(ErrorInfo.of(silent))  # it was perhaps we who stood still: then it still waits
            self.act(export, export.shipment.lease_expired())
        for export in self.all():
            if export.deadline_s <= now_s:
                self.fail(export, ErrorInfo.of(DeadlineExceeded("its time was over before it was taken")))
            elif export.lands_by_s <= now_s and export.shipment.state is OutgoingState.SHIPPING:
                late = TransferTimeout(f"{export.link.peer.peer_id} did not take it within {self._landing_s:.3g} s")
                log.warning("%s: %s", export.request_id, late.message, extra={"request_id": export.request_id})
                self.fail(export, ErrorInfo.of(late))

    def computed(self, export: Export, *, is_finished: bool) -> None:
        """All that it ships is there, or nothing of it is wanted: `is_finished`."""
        export.lands_by_s = self._clock.now() + self._landing_s
        self.act(export, export.shipment.prompt_done(is_finished=is_finished))

    def fail(self, export: Export, error: ErrorInfo) -> None:
        """Give a shipment up and tell its taker; no-op for one that is ending."""
        if export.shipment.state is OutgoingState.SHIPPING:
            self.counters["failed"] += 1
            export.say_failed(error)
            self.act(export, export.shipment.failed())

    def forget_all(self, error: ErrorInfo) -> None:
        """The engine is gone, and all that it held: every taker is told, nothing is left to release."""
        for export in self.all():
            export.say_failed(error)
            self._forget(export)

    async def aclose(self) -> None:
        """Return when what was going on has ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --------------------------------------------------------------------------------------------------------- effects

    def act(self, export: Export, effects: fx.Effects) -> None:
        """Carry out what the shipment wants."""
        for effect in effects:
            match effect:
                case fx.Announce():
                    export.say_ready(effect)
                case fx.SendBlocks():
                    self._send(export, effect.blocks)
                case fx.Purge():
                    self._spawn(self._purge(export))
                case fx.Release():
                    self._spawn(self._release(export, effect))
                case fx.SendFenced():
                    export.say_fenced()
        if export.shipment.state is OutgoingState.CLOSED:
            self._forget(export)

    def _send(self, export: Export, blocks: tuple[tuple[int, int], ...]) -> None:
        shipment = export.shipment
        try:
            self._sender.send(shipment.peer_id, shipment.shipment_id, shipment.generation, list(blocks))
        except TransferFailed as error:
            self.fail(export, ErrorInfo.of(error))

    async def _purge(self, export: Export) -> None:
        shipment = export.shipment
        await self._sender.fence(shipment.peer_id, shipment.shipment_id, shipment.generation)
        self.act(export, shipment.purged())

    async def _release(self, export: Export, effect: fx.Release) -> None:
        try:
            await export.stop()
            if effect.is_computed:
                self._engine.release(export.engine_id)
            else:
                await self._engine.abort(export.engine_id)
        except EngineFailed as error:
            log.info(
                "%s: nothing to release: %s", export.request_id, error.message, extra={"request_id": export.request_id}
            )
        self.act(export, export.shipment.freed())

    def _forget(self, export: Export) -> None:
        self._leases.release(export.key)
        if self._exports.pop(export.key, None) is not None:
            self._on_end(export)
        if not self._exports:
            self._idle.set()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
