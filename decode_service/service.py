"""The decode pod's job: own requests, take delivery of their KV, stream their tokens.

Routes frames and steps to requests and gathers each step's tokens into one frame per router. What becomes of a request
is decided in `Request`. A colocated pod is this same service with no prefill pods to ask.

Invariant: every submitted request is in `_requests` until its blocks are free or cached.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import grpc

from pagewire.core.clock import Clock
from pagewire.core.engine_messages import StepDone
from pagewire.core.errors import Draining, EngineFailed, ErrorInfo, InvalidRequest, PagewireError, PodLost
from pagewire.core.messages import Cancel, Ended, LinkMessage, Run, ShipmentRefused, Stop, Submit, Tokens
from pagewire.core.sequence_spec import check_id
from pagewire.core.token_record import TokenRecord
from pagewire.decode_service.admission import Admission
from pagewire.decode_service.handovers import Handovers
from pagewire.decode_service.prefill_costs import PrefillCosts
from pagewire.decode_service.request import Request
from pagewire.decode_service.request_span import StepNotes
from pagewire.decode_service.surroundings import Surroundings
from pagewire.engine.brownout import shorten
from pagewire.engine.exchange.exchange import Exchange
from pagewire.engine.exchange.export import Export
from pagewire.engine.exchange.peers import DialBulk
from pagewire.engine.exchange.prefix_plan import FetchMode
from pagewire.engine.front import Front
from pagewire.engine.scheduling_policy import policy_named
from pagewire.kvtransfer.effects import Outcome
from pagewire.kvtransfer.transports.stream_sender import StreamSender
from pagewire.serving.link import Link
from pagewire.serving.metrics import WAIT_FOR_BLOCKS
from pagewire.serving.sample import Sample

log = logging.getLogger(__name__)

SETTLE_S = 5.0


class DecodeService:
    """Serves `Submit` to every router that links to it. `wall` is the wall clock, for tickets alone."""

    def __init__(
        self,
        front: Front,
        *,
        clock: Clock,
        wall: Callable[[], float] = time.time,
        sender: StreamSender,
        dial_bulk: DialBulk | None = None,
    ) -> None:
        config, engine = front.config, front.engine
        self._front = front
        self._requests: dict[str, Request] = {}
        self._traced: dict[str, StepNotes] = {}  # of those requests that are
        self._counters: Counter[str] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        scheduling = policy_named(config.scheduling)
        self._admission = Admission(engine.reserve, config.max_num_waiting, scheduling, clock)
        self._handovers = Handovers(engine, clock)
        self._exchange = Exchange(front, self, sender, clock=clock, wall=wall, dial_bulk=dial_bulk)
        self._costs = PrefillCosts(
            engine.ready.layout, front.load, self._exchange.peers, FetchMode(config.prefix_fetch)
        )
        self._around = Surroundings(
            pod_id=front.identity.peer_id,
            address=lambda: front.address,
            engine=engine,
            admission=self._admission,
            exchange=self._exchange,
            costs=self._costs,
            handovers=self._handovers,
            load=front.load,
            trace_of=front.trace_of,
            clock=clock,
            lease_s=config.lease_s,
        )

    # ---------------------------------------------------------------------------------------------- front.Service

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return the links and the bulk streams."""
        return self._exchange.handlers()

    def counters(self) -> dict[str, float]:
        """Return totals since the start."""
        return {
            "requests_submitted": float(self._counters["submitted"]),
            "requests_refused": float(self._counters["refused"]),
            "requests_shortened": float(self._counters["shortened"]),
            "requests_ended": float(self._counters["ended"]),
            "requests_handed_over": float(self._handovers.num_given_up),
            "handovers_fetched": float(self._handovers.num_taken),
            **self._exchange.counters(),
        }

    def gauges(self) -> Iterator[Sample]:
        """Yield what is known of links, and how far predictions are corrected."""
        yield from self._exchange.gauges()
        waiting = self._admission.num_waiting
        yield Sample(WAIT_FOR_BLOCKS, {}, waiting, "Requests that wait for blocks before the engine has them")
        text = "What the predicted time of a prefill is multiplied with"
        yield Sample("prefill_correction", {"where": "local"}, self._costs.here.factor, text)
        yield Sample("prefill_correction", {"where": "remote"}, self._costs.there.factor, text)

    def on_step(self, step: StepDone) -> None:
        """Stream what a step sampled: one frame per router."""
        frames: defaultdict[Link, list[TokenRecord]] = defaultdict(list)
        for record in step.records:
            if (request := self._requests.get(record.request_id)) and request.on_tokens(record):
                frames[request.link].append(record)
        for link, records in frames.items():
            link.say(Tokens(records=tuple(records)))
        if self._traced:
            self._note(step)
        for end in step.ends:
            if request := self._requests.get(end.request_id):
                request.on_end(end)
        if step.ends or step.load is not None:
            self._admission.room()

    def _note(self, step: StepDone) -> None:
        """Note what a step did for the requests that are traced."""
        end_s = self._around.clock.now()
        start_s = end_s - step.elapsed_s
        for chunk in step.prompts:
            if notes := self._traced.get(chunk.request_id):
                notes.chunk(chunk.num_tokens, start_s, end_s)
        tokens: Counter[str] = Counter()
        for record in step.records:
            if record.request_id in self._traced:
                tokens[record.request_id] += len(record.tokens)
        for request_id, num_tokens in tokens.items():
            self._traced[request_id].sampled(num_tokens, start_s, end_s)
        for request_id in step.preempted:
            if notes := self._traced.get(request_id):
                notes.preempted(end_s)

    async def drained(self) -> None:
        """Return when every request is settled, and what was handed over is fetched."""
        await self._idle.wait()
        await self._handovers.wait_idle()
        await self._exchange.exports.wait_idle()

    def hand_over(self) -> None:
        """Give up what still runs: each router goes on with it elsewhere, from the blocks that are held here."""
        for request in list(self._requests.values()):
            request.cancel("handover")

    async def fail(self, error: EngineFailed) -> None:
        """The engine is gone: every request ends here, and the routers hear that another pod may go on with it."""
        lost = PodLost(f"{self._front.identity.peer_id}: {error.message}")
        for request in list(self._requests.values()):
            request.fail(lost)
        self._exchange.engine_failed(error)
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d requests are not settled after %s s", len(self._requests), SETTLE_S)

    async def aclose(self) -> None:
        """End links and streams."""
        closing = asyncio.create_task(self._exchange.aclose())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(closing, *self._tasks, return_exceptions=True)

    def tick(self) -> None:
        """Look at the clock, as the service does by itself."""
        self._exchange.tick()

    # -------------------------------------------------------------------------------------------------- exchange.Job

    def on_message(self, link: Link, message: LinkMessage) -> None:
        """Take a router's frame."""
        match message:
            case Submit():
                self._on_submit(link, message)
            case Stop() | Cancel():
                if isinstance(message, Cancel):
                    self._handovers.forget(message.request_id)
                request = self._requests.get(message.request_id)
                if request is None or request.link is not link:
                    return
                if isinstance(message, Stop):
                    request.stop(message.index)
                else:
                    request.cancel(message.reason)
            case Run(spec=spec, generation=generation):
                # It was a prefill pod when somebody was told of it.
                error = Draining(f"{self._front.identity.peer_id} is a {self._front.identity.role} pod")
                refusal = ShipmentRefused(request_id=spec.request_id, generation=generation, error=ErrorInfo.of(error))
                link.say(refusal)

    def on_down(self, link: Link) -> None:
        """A router is gone: nobody hears of its requests any more."""
        for request in [request for request in self._requests.values() if request.link is link]:
            request.cancel("client")

    def check_fetch(self) -> None:
        """Nothing: what a draining pod hands over is fetched from it."""

    def on_export_end(self, export: Export) -> None:
        """Another pod has fetched blocks, perhaps to go on with what we handed over."""
        if export.shipment.outcome is Outcome.LANDED:
            self._handovers.fetched(export.hashes)

    def on_tick(self, now_s: float) -> None:
        """Time has passed."""
        self._handovers.tick(now_s)
        self._costs.tick(now_s)

    def _on_submit(self, link: Link, submit: Submit) -> None:
        try:
            self._check(submit)
        except PagewireError as error:
            self._counters["refused"] += 1
            link.say(Ended(request_id=submit.spec.request_id, error=ErrorInfo.of(error)))
            return
        self._counters["submitted"] += 1
        self._idle.clear()
        submit, notes = shorten(submit, self._front.load().brownout, self._front.config.brownout_max_tokens)
        self._counters["shortened"] += bool(notes)
        request = self._requests[submit.spec.request_id] = Request(submit, link, self._around, notes)
        if request.trace is not None:
            self._traced[request.request_id] = StepNotes()
        task = asyncio.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check(self, submit: Submit) -> None:
        """A peer is checked, not trusted: raises Draining or InvalidRequest before anything is allocated."""
        spec, ready = submit.spec, self._around.engine.ready
        check_id(spec.request_id)
        limit, vocab_size = ready.fingerprint.max_model_len, ready.vocab_size
        if not self._front.lifecycle.is_ready:
            raise Draining(f"{self._front.identity.peer_id} is draining")
        if spec.request_id in self._requests:
            raise InvalidRequest(f"request {spec.request_id} is here already", field="request_id")
        if not spec.tokens or len(spec.tokens) + spec.sampling.max_tokens > limit:
            raise InvalidRequest(
                f"{len(spec.tokens)} prompt tokens and {spec.sampling.max_tokens} new ones in a context of {limit}",
                field="prompt",
            )
        outputs = (spec.output, *(branch.output for branch in spec.branches))
        if max(itertools.chain(spec.tokens, *outputs)) >= vocab_size:
            raise InvalidRequest(f"token ids go to {vocab_size - 1}", field="prompt")
        spec.sampling.validate(vocab_size)
        if len(spec.output) >= spec.sampling.max_tokens:
            raise InvalidRequest(
                f"max_tokens {spec.sampling.max_tokens} is used up by {len(spec.output)} tokens of output",
                field="max_tokens",
            )

    async def _run(self, request: Request) -> None:
        try:
            await request.run()
        finally:
            self._counters["ended"] += 1
            del self._requests[request.request_id]
            if request.trace is not None and self._front.tracing is not None:
                self._front.tracing.record(request.span(self._traced.pop(request.request_id)), request.trace)
            if not self._requests:
                self._idle.set()
