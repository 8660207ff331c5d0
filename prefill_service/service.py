"""The prefill pod's job: run prompts for decode pods and ship their blocks while later chunks compute.

Turns frames and steps into events of each prompt's shipment; what follows from them is the exchange's. Invariant:
every `Run` is answered, every accepted prompt ends in exactly one release.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import grpc

from pagewire.core.clock import Clock
from pagewire.core.engine_messages import ChunkDone, StepDone
from pagewire.core.errors import Draining, EngineFailed, ErrorInfo, Overloaded, PagewireError
from pagewire.core.messages import Ended, LinkMessage, Run, RunAccepted, ShipmentRefused, Source, Submit
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.core.token_record import TokenRecord
from pagewire.engine.exchange.exchange import Exchange
from pagewire.engine.exchange.export import Export
from pagewire.engine.exchange.peers import DialBulk
from pagewire.engine.exchange.prefix_plan import FetchMode, PrefixPlan, plan_prefix
from pagewire.engine.front import Front
from pagewire.kvtransfer.outgoing import OutgoingState
from pagewire.kvtransfer.transports.stream_sender import StreamSender
from pagewire.prefill_service.prompt import Prompt
from pagewire.serving.link import Link
from pagewire.serving.sample import Sample

log = logging.getLogger(__name__)


class PrefillService:
    """Serves `Run` to every decode pod that links to it. `wall` is the wall clock, for tickets alone."""

    def __init__(
        self,
        front: Front,
        *,
        clock: Clock,
        wall: Callable[[], float],
        sender: StreamSender,
        dial_bulk: DialBulk | None = None,
    ) -> None:
        self._front = front
        self._engine = front.engine
        self._clock = clock
        self._by_engine_id: dict[str, Prompt] = {}
        self._counters: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._exchange = Exchange(front, self, sender, clock=clock, wall=wall, dial_bulk=dial_bulk)

    # ---------------------------------------------------------------------------------------------- front.Service

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return the links and the bulk streams."""
        return self._exchange.handlers()

    def counters(self) -> dict[str, float]:
        """Return totals since the start."""
        ours = {f"prompts_{name}": float(self._counters[name]) for name in ("accepted", "refused", "failed")}
        return {**ours, **self._exchange.counters()}

    def gauges(self) -> Iterator[Sample]:
        """Yield what is known of links."""
        yield from self._exchange.gauges()

    def on_step(self, step: StepDone) -> None:
        """Ship what a step completed; the first token goes ahead of the bytes."""
        records: defaultdict[str, list[TokenRecord]] = defaultdict(list)
        for record in step.records:
            records[record.request_id].append(record)
        for chunk in step.chunks:
            if prompt := self._by_engine_id.get(chunk.request_id):
                self._on_chunk(prompt, chunk, records[chunk.request_id], step.elapsed_s)
        for end in step.ends:
            if end.error is not None and (prompt := self._by_engine_id.get(end.request_id)):
                self._fail(prompt, end.error)

    async def drained(self) -> None:
        """Return when nothing is held for anybody any more."""
        await self._exchange.exports.wait_idle()

    def hand_over(self) -> None:
        """Nothing: a prompt that is not done is built again elsewhere, from what landed."""

    async def fail(self, error: EngineFailed) -> None:
        """The engine is gone: every decode pod is told, nothing is left to release."""
        self._exchange.engine_failed(error)

    async def aclose(self) -> None:
        """End the links, the streams, and what was going on for them."""
        await self._exchange.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def tick(self) -> None:
        """Look at the clock, as the service does by itself."""
        self._exchange.tick()

    # -------------------------------------------------------------------------------------------------- exchange.Job

    def on_message(self, link: Link, message: LinkMessage) -> None:
        """Take a decode pod's `Run`."""
        match message:
            case Run():
                self._on_run(link, message)
            case Submit(spec=spec):
                error = Draining(f"{self._front.identity.peer_id} is a prefill pod: it owns no requests")
                link.say(Ended(request_id=spec.request_id, error=ErrorInfo.of(error)))

    def on_down(self, link: Link) -> None:
        """A decode pod is gone; its prompts end with their shipments."""

    def check_fetch(self) -> None:
        """Raise Draining once nothing new is admitted: who fetches would be waited for."""
        if not self._front.lifecycle.is_ready:
            raise Draining(f"{self._front.identity.peer_id} is draining")

    def on_export_end(self, export: Export) -> None:
        """A prompt is over."""
        self._by_engine_id.pop(export.engine_id, None)

    def on_tick(self, now_s: float) -> None:
        """Time has passed."""

    # -------------------------------------------------------------------------------------------------------- a prompt

    def _on_run(self, link: Link, run: Run) -> None:
        request_id, generation = run.spec.request_id, run.generation
        try:
            prompt = self._accept(link, run)
            if not run.sources:
                self._engine.add(prompt.add)
        except PagewireError as error:
            self._counters["refused"] += 1
            log.info("run %s refused: %s", request_id, error.message, extra={"request_id": request_id})
            link.say(ShipmentRefused(request_id=request_id, generation=generation, error=ErrorInfo.of(error)))
            return
        self._counters["accepted"] += 1
        self._by_engine_id[prompt.engine_id] = prompt
        self._exchange.exports.open(prompt, run.lease_s)
        link.say(RunAccepted(request_id=request_id, generation=generation))
        if run.sources:
            task = asyncio.create_task(self._fetch_and_run(prompt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _accept(self, link: Link, run: Run) -> Prompt:
        """Return the prompt, with its ticket spent; raises why it is not taken. Holds nothing yet."""
        self.check_fetch()
        shipment = self._exchange.exports.shipment(link, run, ships=run.ship)
        now_s = self._clock.now()
        watch = Stopwatch(self._front.identity.peer_id)
        watch.stamp(Phase.RUN_RECEIVED, now_s)
        trace = self._front.trace_of(run.traceparent)
        engine_id = f"{run.spec.request_id}/{link.peer.peer_id}/{run.generation}"
        deadline_s = now_s + run.deadline_s
        return Prompt(
            link=link,
            request_id=run.spec.request_id,
            generation=run.generation,
            engine_id=engine_id,
            shipment=shipment,
            deadline_s=deadline_s,
            run=run,
            layout=self._engine.ready.layout,
            watch=watch,
            taking=self._exchange.taking(engine_id, deadline_s, watch, trace=trace),
            opened_s=now_s,
            trace=trace,
        )

    async def _fetch_and_run(self, prompt: Prompt) -> None:
        """Copy what another pod holds of the prompt, where that beats computing it, then compute the rest."""
        try:
            reserved = await self._engine.reserve(prompt.reserve)
            if prompt.shipment.state is not OutgoingState.SHIPPING:
                return
            if reserved.error is not None:
                error = reserved.error.error()
                if not isinstance(error, Overloaded):
                    raise error
                self._engine.add(prompt.add)  # waits for its blocks in the queue, and is computed whole
                return
            num_blocks = await self._fetch(prompt, reserved.hit_blocks)
            if prompt.shipment.state is OutgoingState.SHIPPING:
                self._engine.join(prompt.join(num_blocks * self._engine.ready.layout.block_size))
        except PagewireError as error:
            self._fail(prompt, ErrorInfo.of(error))
        except Exception as error:  # our own bug ends the one prompt, by name
            log.exception("%s was not begun", prompt.engine_id)
            self._fail(prompt, ErrorInfo.of(EngineFailed(f"{type(error).__name__}: {error}")))

    async def _fetch(self, prompt: Prompt, hit_blocks: int) -> int:
        """Return how many blocks of the chain are here then."""
        spec, layout, peers = prompt.run.spec, self._engine.ready.layout, self._exchange.peers
        cost_s, mode = self._front.load().prefill_s_per_token, FetchMode(self._front.config.prefix_fetch)

        def plan(num_blocks: int, sources: Sequence[Source]) -> PrefixPlan:
            known = [(source, peers.cost(source.pod_id, source.address)) for source in sources]
            return plan_prefix(len(spec.tokens) + len(spec.output), num_blocks, known, layout, cost_s, mode)

        return await prompt.taking.fetch_prefix(spec, hit_blocks, prompt.run.sources, plan)

    def _on_chunk(self, prompt: Prompt, chunk: ChunkDone, records: Sequence[TokenRecord], elapsed_s: float) -> None:
        if prompt.shipment.state is not OutgoingState.SHIPPING:
            return
        exports = self._exchange.exports
        if chunk.group is not None:
            exports.act(prompt, prompt.shipment.chunk_done(chunk.first_block, chunk.block_ids, chunk.group))
            return
        now_s = self._clock.now()
        prompt.computed(chunk, now_s - elapsed_s, now_s)
        prompt.watch.stamp(Phase.PREFILL_BEGUN, now_s - elapsed_s)  # the first stamp stands
        prompt.watch.stamp(Phase.FIRST_CHUNK_COMPUTED, now_s)
        is_finished = False
        if chunk.is_last and records:
            prompt.watch.stamp(Phase.LAST_CHUNK_COMPUTED, now_s)
            is_finished = not prompt.run.ship or all(record.finish_reason is not None for record in records)
            num_blocks = 0 if is_finished else chunk.first_block + len(chunk.block_ids) - prompt.run.first_block
            prompt.say_first_token(chunk, records, num_blocks)
            is_finished = not num_blocks  # also where the taker had them all: it will not say that they landed
        if not is_finished:
            exports.act(prompt, prompt.shipment.chunk_done(chunk.first_block, chunk.block_ids))
        if chunk.is_last:
            exports.computed(prompt, is_finished=is_finished)

    def _fail(self, prompt: Prompt, error: ErrorInfo) -> None:
        self._counters["failed"] += 1
        self._exchange.exports.fail(prompt, error)
