"""The prefill pod's job: run prompts for decode pods and ship their blocks while later chunks compute.

Turns frames and steps into events of each prompt's `OutgoingShipment` and carries out the effects. Decides nothing
about blocks itself. Invariant: every `Run` is answered, every accepted prompt ends in exactly one release.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence

import grpc

from pagewire.core.clock import Clock
from pagewire.core.engine_messages import ChunkDone, StepDone
from pagewire.core.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    PagewireError,
    TransferFailed,
)
from pagewire.core.messages import (
    ErrorInfo,
    Fence,
    Fenced,
    Landed,
    LinkMessage,
    Resend,
    Run,
    RunAccepted,
    RunRefused,
    TokenRecord,
)
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.engine.front import Front
from pagewire.kvtransfer import effects as fx
from pagewire.kvtransfer.lease import LeaseTable
from pagewire.kvtransfer.outgoing import OutgoingShipment, OutgoingState
from pagewire.kvtransfer.ticket import TicketClaims, TicketKey, TicketLedger
from pagewire.kvtransfer.transports.grpc_sender import GrpcSender
from pagewire.prefill_service.prompt import Prompt, PromptKey, say
from pagewire.serving.link import Link, LinkEvents, LinkServer

log = logging.getLogger(__name__)

TICK_S = 0.5
RETRY_AFTER_S = 1.0


class PrefillService:
    """Serves `Run` to every decode pod that links to it. `wall` is the wall clock, for tickets alone."""

    def __init__(self, front: Front, sender: GrpcSender, *, clock: Clock, wall: Callable[[], float]) -> None:
        self._front = front
        self._engine = front.engine
        self._sender = sender
        self._clock = clock
        self._wall = wall
        self._tickets = TicketKey(front.identity.secret)
        self._ledger = TicketLedger()
        self._prompts: dict[PromptKey, Prompt] = {}
        self._by_engine_id: dict[str, Prompt] = {}
        self._leases: LeaseTable[PromptKey] = LeaseTable()
        self._counters: Counter[str] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest_link: dict[str, Link] = {}
        self._links = LinkServer(
            lambda: front.identity,
            LinkEvents(on_message=self._on_message, on_up=self._on_up, on_down=self._on_down),
            load=front.load,
        )
        self._ticker = asyncio.create_task(self._keep_ticking())

    # ---------------------------------------------------------------------------------------------- front.Service

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return the links and the bulk stream."""
        return (self._links.handler(), self._sender.handler())

    def counters(self) -> dict[str, float]:
        """Return totals since the start."""
        sent = self._sender.counters
        return {
            "prompts_accepted": float(self._counters["accepted"]),
            "prompts_refused": float(self._counters["refused"]),
            "prompts_failed": float(self._counters["failed"]),
            "kv_blocks_sent": float(sent.blocks),
            "kv_bytes_sent": float(sent.bytes),
        }

    def on_step(self, step: StepDone) -> None:
        """Ship what a step completed; the first token goes ahead of the bytes."""
        records = {record.request_id: record for record in step.records}
        for chunk in step.chunks:
            if prompt := self._by_engine_id.get(chunk.request_id):
                self._on_chunk(prompt, chunk, records.get(chunk.request_id))
        for end in step.ends:
            if end.error is not None and (prompt := self._by_engine_id.get(end.request_id)):
                self._fail(prompt, end.error)

    async def drained(self) -> None:
        """Return when no prompt is held any more."""
        await self._idle.wait()

    async def fail(self, error: EngineFailed) -> None:
        """The engine is gone: every decode pod is told, nothing is left to release."""
        for prompt in list(self._prompts.values()):
            prompt.say_failed(ErrorInfo.of(error))
            self._forget(prompt)

    async def aclose(self) -> None:
        """End the links, the streams, and what was going on for them."""
        self._ticker.cancel()
        await self._links.aclose("the pod stops")
        self._sender.close("the pod stops")
        await asyncio.gather(self._ticker, *self._tasks, return_exceptions=True)

    def tick(self) -> None:
        """Look at the clock, as the service does by itself every `TICK_S`: leases and deadlines end."""
        now_s = self._clock.now()
        for key in self._leases.expired(now_s):
            log.warning("lease of %s expired", key[0])
            self._act(self._prompts[key], self._prompts[key].shipment.lease_expired())
        for prompt in [prompt for prompt in self._prompts.values() if prompt.deadline_s <= now_s]:
            late = DeadlineExceeded(f"the prompt was not built and taken within {prompt.run.deadline_s} s")
            self._fail(prompt, ErrorInfo.of(late))

    # ------------------------------------------------------------------------------------------ from decode pods

    def _on_up(self, link: Link) -> None:
        log.info("%s linked", link.peer.peer_id)
        self._newest_link[link.peer.peer_id] = link

    def _on_down(self, link: Link) -> None:
        # A broken link ends its shipments on both sides: the decode pod resumes from what landed.
        if self._newest_link.get(link.peer.peer_id) is link:  # a pod that dialled again has a new stream as well
            del self._newest_link[link.peer.peer_id]
            self._sender.drop(link.peer.peer_id, "the link is down")
        for prompt in [prompt for prompt in self._prompts.values() if prompt.link is link]:
            self._act(prompt, prompt.shipment.peer_lost())

    def _on_message(self, link: Link, message: LinkMessage) -> None:
        self._leases.renew(link.peer.peer_id, self._clock.now())
        if isinstance(message, Run):
            return self._on_run(link, message)
        if not isinstance(message, Landed | Resend | Fence):
            return None
        prompt = self._prompts.get((message.request_id, message.generation))
        if prompt is None or prompt.link is not link:
            if isinstance(message, Fence):  # ended already; the question still gets its answer
                say(link, Fenced(request_id=message.request_id, generation=message.generation))
            return None
        match message:
            case Landed():
                self._act(prompt, prompt.shipment.landed())
            case Resend():
                self._act(prompt, prompt.shipment.resend(message.first_block, message.num_blocks))
            case Fence():
                self._act(prompt, prompt.shipment.fence())
        return None

    def _on_run(self, link: Link, run: Run) -> None:
        request_id, generation = run.spec.request_id, run.generation
        try:
            prompt = self._accept(link, run)
            self._engine.add(prompt.command)
        except PagewireError as error:
            self._counters["refused"] += 1
            log.info("run %s refused: %s", request_id, error.message)
            say(link, RunRefused(request_id=request_id, generation=generation, error=ErrorInfo.of(error)))
            return
        self._counters["accepted"] += 1
        self._idle.clear()
        self._prompts[prompt.key] = prompt
        self._by_engine_id[prompt.engine_id] = prompt
        self._leases.grant(prompt.key, link.peer.peer_id, run.lease_s, self._clock.now())
        say(link, RunAccepted(request_id=request_id, generation=generation))

    def _accept(self, link: Link, run: Run) -> Prompt:
        """Return the prompt, with its ticket spent; raises why it is not taken. Holds nothing yet."""
        key = (run.spec.request_id, run.generation)
        if not self._front.lifecycle.is_ready:
            raise Draining(f"{self._front.identity.peer_id} is draining")
        if len(self._prompts) >= self._front.config.max_num_waiting:
            raise Overloaded(f"{len(self._prompts)} prompts are held already", retry_after_s=RETRY_AFTER_S)
        if key in self._prompts:
            raise InvalidRequest(f"run {key} is here already", field="generation")
        if not run.lease_s > 0:
            raise InvalidRequest(f"a lease of {run.lease_s} s", field="lease_s")
        self._spend_ticket(link, run)
        watch = Stopwatch(self._front.identity.peer_id)
        watch.stamp(Phase.RUN_RECEIVED, self._clock.now())
        shipment = OutgoingShipment(
            request_id=run.spec.request_id,
            generation=run.generation,
            shipment_id=run.shipment_id,
            peer_id=link.peer.peer_id,
            first_block=run.first_block,
            ships=run.ship,
        )
        engine_id = f"{run.spec.request_id}/{link.peer.peer_id}/{run.generation}"
        return Prompt(
            link=link,
            run=run,
            engine_id=engine_id,
            shipment=shipment,
            watch=watch,
            deadline_s=self._clock.now() + run.deadline_s,
        )

    def _spend_ticket(self, link: Link, run: Run) -> None:
        claims = TicketClaims(
            request_id=run.spec.request_id,
            source=self._front.identity.peer_id,
            target=link.peer.peer_id,
            shipment_id=run.shipment_id,
            first_block=run.first_block,
            generation=run.generation,
        )
        forget_at_s = self._tickets.verify(run.ticket, claims, self._wall())
        self._ledger.spend(run.ticket, forget_at_s, self._wall())

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    # ------------------------------------------------------------------------------------------- from the engine

    def _on_chunk(self, prompt: Prompt, chunk: ChunkDone, record: TokenRecord | None) -> None:
        if prompt.shipment.state is not OutgoingState.SHIPPING:
            return
        now_s = self._clock.now()
        prompt.num_chunks += 1
        prompt.watch.stamp(Phase.FIRST_CHUNK_COMPUTED, now_s)
        is_finished = False
        if chunk.is_last and record is not None:
            prompt.watch.stamp(Phase.LAST_CHUNK_COMPUTED, now_s)
            is_finished = record.finish_reason is not None or not prompt.run.ship
            end = chunk.first_block + len(chunk.block_ids)
            prompt.say_first_token(chunk, record, 0 if is_finished else end - prompt.run.first_block)
        if not is_finished:
            self._act(prompt, prompt.shipment.chunk_done(chunk.first_block, chunk.block_ids))
        if chunk.is_last:
            self._act(prompt, prompt.shipment.prompt_done(is_finished=is_finished))

    def _fail(self, prompt: Prompt, error: ErrorInfo) -> None:
        if prompt.shipment.state is OutgoingState.SHIPPING:
            self._counters["failed"] += 1
            prompt.say_failed(error)
            self._act(prompt, prompt.shipment.failed())

    # -------------------------------------------------------------------------------------------------- effects

    def _act(self, prompt: Prompt, effects: fx.Effects) -> None:
        for effect in effects:
            match effect:
                case fx.Announce():
                    prompt.say_chunk_ready(effect.first_block, effect.num_blocks)
                case fx.SendBlocks():
                    self._send(prompt, effect.blocks)
                case fx.Purge():
                    self._spawn(self._purge(prompt))
                case fx.Release():
                    self._spawn(self._release(prompt, effect))
                case fx.SendFenced():
                    prompt.say_fenced()
        if prompt.shipment.state is OutgoingState.CLOSED:
            self._forget(prompt)

    def _send(self, prompt: Prompt, blocks: tuple[tuple[int, int], ...]) -> None:
        shipment = prompt.shipment
        try:
            self._sender.send(shipment.peer_id, shipment.shipment_id, shipment.generation, list(blocks))
        except TransferFailed as error:
            self._fail(prompt, ErrorInfo.of(error))

    async def _purge(self, prompt: Prompt) -> None:
        shipment = prompt.shipment
        await self._sender.fence(shipment.peer_id, shipment.shipment_id, shipment.generation)
        self._act(prompt, shipment.purged())

    async def _release(self, prompt: Prompt, effect: fx.Release) -> None:
        try:
            if effect.is_computed:
                self._engine.release(prompt.engine_id)
            else:
                await self._engine.abort(prompt.engine_id)
        except EngineFailed as error:
            log.info("%s: nothing to release: %s", prompt.key[0], error.message)
        self._act(prompt, prompt.shipment.freed())

    def _forget(self, prompt: Prompt) -> None:
        self._leases.release(prompt.key)
        self._by_engine_id.pop(prompt.engine_id, None)
        self._prompts.pop(prompt.key, None)
        if not self._prompts:
            self._idle.set()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
