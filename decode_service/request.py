"""One request's life on the decode pod that owns it, from its submission to `Ended`.

    reserve -> (run on a prefill pod -> landed)* -> join the batch -> finished
                       |-> refused: the next candidate     |-> lost: what landed stays, the rest is computed here

A straight line that waits; what happens beside it comes in as calls (`on_end`, `cancel`). Knows nothing of other
requests. Invariant: whatever ends it, `run` sends exactly one `Ended` and leaves no block held.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from pagewire.core.clock import Clock
from pagewire.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineFailed,
    PagewireError,
    Unavailable,
)
from pagewire.core.messages import (
    Candidate,
    Ended,
    ErrorInfo,
    FirstToken,
    Join,
    LinkMessage,
    Load,
    Report,
    Run,
    SequenceEnd,
    Submit,
    Tokens,
)
from pagewire.core.timeline import Phase, Stopwatch, Timeline
from pagewire.decode_service.admission import Admission
from pagewire.decode_service.delivery import Delivery
from pagewire.decode_service.prefill_choice import prefers_local
from pagewire.decode_service.prefill_peers import PrefillPeers
from pagewire.engine.client import EngineClient
from pagewire.kvtransfer.effects import HandOver, Outcome
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.ticket import TicketClaims, TicketKey
from pagewire.kvtransfer.transport import Receiver
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link

log = logging.getLogger(__name__)

TICKET_GRACE_S = 60.0


class Surroundings:
    """What every request of the pod shares. `wall` is the wall clock, for tickets alone."""

    def __init__(
        self,
        *,
        identity: Identity,
        engine: EngineClient,
        admission: Admission,
        peers: PrefillPeers,
        load: Callable[[], Load],
        clock: Clock,
        wall: Callable[[], float],
        lease_s: float,
        transfer_timeout_s: float,
    ) -> None:
        self.identity = identity
        self.engine = engine
        self.admission = admission
        self.peers = peers
        self.load = load
        self.clock = clock
        self.wall = wall
        self.lease_s = lease_s
        self.transfer_timeout_s = transfer_timeout_s
        self.tickets = TicketKey(identity.secret)
        self.layout = engine.ready.layout


class Request:
    """One submitted request; `link` is the router's."""

    def __init__(self, submit: Submit, link: Link, around: Surroundings) -> None:
        self.link = link
        self.watch = Stopwatch(around.identity.peer_id)
        self._submit = submit
        self._spec = submit.spec
        self._around = around
        self._life: asyncio.Task[None] | None = None
        self._cancelled = ""  # the reason, once somebody asked
        self._ended: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()
        self._is_reserved = False
        self._hit_blocks = 0
        self._deliveries: list[Delivery] = []
        self._first_token: FirstToken | None = None
        self._outcome = Outcome.FINISHED

    @property
    def request_id(self) -> str:
        """The name of this attempt."""
        return self._spec.request_id

    # -------------------------------------------------------------------------------------------------- from outside

    def on_tokens(self) -> None:
        """The engine sampled for it."""
        self.watch.stamp(Phase.FIRST_STEP, self._around.clock.now())

    def on_end(self, end: SequenceEnd) -> None:
        """The engine is done with it."""
        if not self._ended.done():
            self._ended.set_result(end)

    def cancel(self, reason: str) -> None:
        """End it now: "stop" is a normal end, anything else an error by that name."""
        self._cancelled = self._cancelled or reason
        if self._life is not None:
            self._life.cancel()

    def fail(self, error: EngineFailed) -> None:
        """The engine is gone."""
        self.on_end(
            SequenceEnd(request_id=self.request_id, cached_tokens=0, computed_tokens=0, error=ErrorInfo.of(error))
        )
        self.cancel("engine")

    # ------------------------------------------------------------------------------------------------------ the life

    async def run(self) -> None:
        """Live; returns when the request is settled and its blocks are free or cached."""
        self.watch.stamp(Phase.ACCEPTED, self._around.clock.now())
        self._life = asyncio.create_task(self._live())
        (failure,) = await asyncio.gather(self._life, return_exceptions=True)
        error = self._error_of(failure)
        self.watch.stamp(Phase.FINISHED, self._around.clock.now())
        # The client first: its answer does not wait until nobody can touch the blocks any more.
        self._say(
            Ended(
                request_id=self.request_id,
                error=ErrorInfo.of(error) if error else None,
                report=self._report(),
                timelines=self._timelines(),
            )
        )
        await self._settle()

    async def _live(self) -> None:
        try:
            async with asyncio.timeout(self._submit.deadline_s):
                if await self._only_the_first_token():
                    return
                reserved = await self._around.admission.reserve(self._spec)
                self._is_reserved, self._hit_blocks = True, reserved.hit_blocks
                self.watch.stamp(Phase.RESERVED, self._around.clock.now())
                num_computed = await self._build_prompt(reserved.hit_blocks)
                if self._first_token is not None and self._first_token.record.finish_reason is not None:
                    return
                self.watch.stamp(Phase.JOINED, self._around.clock.now())
                self._around.engine.join(
                    Join(request_id=self.request_id, num_computed=num_computed, output=self._output())
                )
                end = await asyncio.shield(self._ended)
                if end.error is not None:
                    raise end.error.error()
        except TimeoutError:
            raise DeadlineExceeded(f"no end within {self._submit.deadline_s} s; last: {self._last_phase()}") from None

    async def _only_the_first_token(self) -> bool:
        """A request for one more token ships nothing and needs no block here; False when it is to be done here."""
        wanted = self._spec.sampling.max_tokens - len(self._spec.output)
        if wanted > 1 or not self._submit.candidates or self._submit.prefill == "local":
            return False
        for candidate in self._submit.candidates:
            await self._run_on(candidate, first_block=0, ship=False)
            if self._first_token is not None:
                return True
        return False

    async def _build_prompt(self, hit_blocks: int) -> int:
        """Have the prompt's KV brought here; return how many of its tokens need no computing."""
        num_tokens = len(self._spec.tokens) + len(self._spec.output)
        block_size = self._around.layout.block_size
        num_blocks = hit_blocks
        for candidate in self._remote_candidates(hit_blocks * block_size):
            handed = await self._run_on(candidate, first_block=num_blocks, ship=True)
            if handed is None:
                continue
            self._outcome = handed.outcome
            if handed.outcome is Outcome.LANDED:
                return num_tokens
            num_blocks += handed.kept_blocks
            if handed.outcome is not Outcome.REFUSED:
                break
        # Without a first token the last prompt token is computed here, for its logits; a partial block never is kept.
        return min(num_blocks, (num_tokens - 1) // block_size) * block_size

    def _remote_candidates(self, cached_tokens: int) -> tuple[Candidate, ...]:
        submit, num_tokens = self._submit, len(self._spec.tokens) + len(self._spec.output)
        if submit.prefill == "local" or not submit.candidates:
            return ()
        is_auto = submit.prefill == "auto"
        if is_auto and prefers_local(num_tokens, cached_tokens, submit.candidates, self._around.load()):
            return ()
        return submit.candidates

    async def _run_on(self, candidate: Candidate, *, first_block: int, ship: bool) -> HandOver | None:
        """Run the prompt on one prefill pod; None when it cannot be reached."""
        around = self._around
        peer = around.peers.at(candidate.pod_id, candidate.address)
        try:
            link = await peer.link()
            delivery = self._delivery(link, peer.receiver, first_block)
        except PagewireError as error:
            log.warning("%s: prefill pod %s not used: %s", self.request_id, candidate.pod_id, error.message)
            return None
        self._deliveries.append(delivery)
        peer.add(delivery)
        self.watch.stamp(Phase.RUN_SENT, around.clock.now())
        try:
            link.send(self._run_message(delivery, candidate, ship))
        except Unavailable:
            delivery.peer_lost()
        handed = await asyncio.shield(delivery.handed_over)
        if handed.outcome in (Outcome.LOST, Outcome.REFUSED):
            why = delivery.error.message if delivery.error else delivery.shipment.error or "the link is down"
            log.warning("%s: shipment from %s %s: %s", self.request_id, candidate.pod_id, handed.outcome, why)
        return handed

    def _delivery(self, link: Link, receiver: Receiver, first_block: int) -> Delivery:
        around = self._around
        num_tokens = len(self._spec.tokens) + len(self._spec.output)
        shipment = IncomingShipment(
            request_id=self.request_id,
            generation=len(self._deliveries) + 1,
            shipment_id=secrets.randbits(63),
            first_block=first_block,
            max_blocks=around.layout.num_blocks(num_tokens) - first_block,
            deadline_s=around.clock.now() + self._submit.deadline_s,
            landing_s=around.transfer_timeout_s,
        )
        return Delivery(
            shipment,
            link=link,
            receiver=receiver,
            memory=around.engine.pool,
            bind=around.engine.bind,
            clock=around.clock,
            watch=self.watch,
            on_first_token=self._on_first_token,
        )

    def _run_message(self, delivery: Delivery, candidate: Candidate, ship: bool) -> Run:
        around, shipment = self._around, delivery.shipment
        claims = TicketClaims(
            request_id=self.request_id,
            source=candidate.pod_id,
            target=around.identity.peer_id,
            shipment_id=shipment.shipment_id,
            first_block=shipment.first_block,
            generation=shipment.generation,
        )
        return Run(
            spec=self._spec,
            generation=shipment.generation,
            shipment_id=shipment.shipment_id,
            first_block=shipment.first_block,
            ship=ship,
            ticket=around.tickets.mint(claims, around.wall() + TICKET_GRACE_S),
            lease_s=around.lease_s,
            deadline_s=self._submit.deadline_s,
        )

    def _on_first_token(self, message: FirstToken) -> None:
        # A second prefill pod samples the same token again; what the client has stands.
        if self._first_token is None:
            self._first_token = message
            self._say(Tokens(records=(message.record,)))

    def _output(self) -> tuple[int, ...]:
        first = self._first_token.record.tokens if self._first_token is not None else ()
        return self._spec.output + first

    # ------------------------------------------------------------------------------------------------------- the end

    def _error_of(self, failure: BaseException | None) -> PagewireError | None:
        if self._ended.done() and self._cancelled == "engine" and (info := self._ended.result().error):
            return info.error()
        if failure is None or (isinstance(failure, asyncio.CancelledError) and self._cancelled == "stop"):
            return None
        if isinstance(failure, asyncio.CancelledError):
            return Cancelled(f"cancelled: {self._cancelled or 'the pod stops'}")
        if isinstance(failure, PagewireError):
            return failure
        log.error("%s failed", self.request_id, exc_info=failure)
        return EngineFailed(f"{type(failure).__name__}: {failure}")

    async def _settle(self) -> None:
        """Free what is held: the prefill pod's side, then ours, once nobody writes into it."""
        for delivery in self._deliveries:
            delivery.cancel()
            await delivery.handed_over
        if self._is_reserved and not self._ended.done():
            await self._around.engine.abort(self.request_id)
            self._around.admission.room()

    def _say(self, message: LinkMessage) -> None:
        try:
            self.link.send(message)
        except Unavailable:
            log.debug("%s: the router is gone", self.request_id)

    def _report(self) -> Report:
        ended = self._ended.result() if self._ended.done() else None
        first = self._first_token
        shipped = [d.shipment for d in self._deliveries]
        block_bytes = self._around.layout.block_bytes
        was_remote = self._outcome is Outcome.LANDED or (first is not None and first.record.finish_reason is not None)
        num_blocks = sum(shipment.num_verified for shipment in shipped)
        return Report(
            placement="remote" if was_remote else "resumed" if shipped else "local",
            prefill_pod=self._deliveries[-1].link.peer.peer_id if self._deliveries else "",
            decode_pod=self._around.identity.peer_id,
            prompt_tokens=len(self._spec.tokens),
            prefill_cached_tokens=first.cached_tokens if first else 0,
            prefill_computed_tokens=first.computed_tokens if first else 0,
            decode_cached_tokens=self._hit_blocks * self._around.layout.block_size,
            decode_computed_tokens=ended.computed_tokens if ended else 0,
            chunks=first.chunks if first else 0,
            manifest_blocks=first.num_blocks if first else 0,
            blocks_shipped=num_blocks,
            bytes_shipped=num_blocks * block_bytes,
            transfer_s=sum(shipment.transfer_s for shipment in shipped),
            exposed_s=max((shipment.exposed_s for shipment in shipped), default=0.0),
        )

    def _timelines(self) -> tuple[Timeline, ...]:
        ours = self.watch.timeline()
        return (ours, self._first_token.timeline) if self._first_token is not None else (ours,)

    def _last_phase(self) -> str:
        return max(self.watch.timeline().stamps, key=lambda stamp: stamp.at_s).phase.value
