"""One request's life on the decode pod that owns it, from its submission to `Ended`.

    reserve -> have the prompt built elsewhere, or not -> join the batch -> finished

A straight line that waits; what happens beside it comes in as calls (`on_tokens`, `on_end`, `stop`, `cancel`, `fail`).
Knows nothing of other requests. Invariants: whatever ends it, `run` sends exactly one `Ended`, no token after it, and
leaves no block held.
"""

from __future__ import annotations

import asyncio
import logging

from pagewire.core.engine_messages import Reserved, SequenceEnd, Stop
from pagewire.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineFailed,
    ErrorInfo,
    HandedOver,
    InvalidRequest,
    PagewireError,
    PodLost,
    Unavailable,
)
from pagewire.core.messages import Candidate, Ended, FirstToken, Submit, Tokens
from pagewire.core.report import Report
from pagewire.core.span import Span
from pagewire.core.timeline import Phase, Stopwatch, Timeline
from pagewire.core.token_record import TokenRecord
from pagewire.decode_service.prefill_choice import Calibration, Prediction
from pagewire.decode_service.remote_prefill import RemotePrefill
from pagewire.decode_service.report import report_of
from pagewire.decode_service.request_span import StepNotes, request_span
from pagewire.decode_service.streams import Streams
from pagewire.decode_service.surroundings import Surroundings
from pagewire.serving.link import Link

log = logging.getLogger(__name__)


class Request:
    """One submitted request; `link` is the router's, `notes` say what is done otherwise than asked."""

    def __init__(self, submit: Submit, link: Link, around: Surroundings, notes: tuple[str, ...] = ()) -> None:
        self.link = link
        self._submit = submit
        self._spec = submit.spec
        self._around = around
        self._notes = notes
        self._watch = Stopwatch(around.pod_id)
        self.trace = around.trace_of(submit.traceparent)  # what its span is below, None where it is not traced
        self._remote = RemotePrefill(
            submit.spec,
            submit.sources,
            around,
            deadline_s=around.clock.now() + submit.deadline_s,
            watch=self._watch,
            on_first_token=self._on_first_token,
            trace=self.trace,
        )
        self._life: asyncio.Task[None] | None = None
        self._failure: ErrorInfo | None = None  # what the router was told
        self._cancelled = ""  # the reason, once somebody asked
        self._ended: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()
        self._is_in_engine = False
        self._is_over = False
        self._hit_blocks = 0
        self._streams = Streams(submit.spec)
        self._has_joined = False
        self._has_stepped = False  # a token was sampled here
        self._prediction = Prediction()
        self._chosen_s = 0.0  # when it was decided where to build the prompt

    @property
    def request_id(self) -> str:
        """The name of this attempt."""
        return self._spec.request_id

    # -------------------------------------------------------------------------------------------------- from outside

    def on_tokens(self, record: TokenRecord) -> bool:
        """The engine sampled for it; False when nobody is to hear of it any more."""
        if self._is_over:
            return False
        if not self._has_stepped and record.tokens:
            self._has_stepped = True
            self._watch.stamp(Phase.FIRST_STEP, self._around.clock.now())
            # What waited for other pods first does not say how long it takes here.
            if self._remote.first_token is None and not self._remote.runs and not self._remote.losses:
                self._learn(self._around.costs.here, self._prediction.local_s)
        return self._streams.hear(record)

    def on_end(self, end: SequenceEnd) -> None:
        """The engine is done with it."""
        if not self._ended.done():
            self._ended.set_result(end)

    def stop(self, index: int) -> None:
        """Have no more tokens of one sequence; one that has ended is ignored."""
        if not self._streams.stop(index):
            return
        if self._streams.is_over:
            self.cancel("stop")
        elif self._has_joined:
            try:
                self._around.engine.stop(Stop(request_id=self.request_id, index=index))
            except EngineFailed as error:
                log.info(
                    "%s: nothing to stop: %s", self.request_id, error.message, extra={"request_id": self.request_id}
                )

    def cancel(self, reason: str) -> None:
        """End it now, with an error unless its sequences are over; "handover" leaves its blocks to be fetched."""
        self._cancelled = self._cancelled or reason
        if self._life is not None:
            self._life.cancel()

    def fail(self, error: PodLost) -> None:
        """The engine is gone."""
        self.on_end(
            SequenceEnd(request_id=self.request_id, cached_tokens=0, computed_tokens=0, error=ErrorInfo.of(error))
        )
        self.cancel("engine")

    # ------------------------------------------------------------------------------------------------------ the life

    async def run(self) -> None:
        """Live; returns when the request is settled and its blocks are free or cached."""
        self._watch.stamp(Phase.ACCEPTED, self._around.clock.now())
        self._life = asyncio.create_task(self._live())
        if self._cancelled:  # before it began
            self._life.cancel()
        (failure,) = await asyncio.gather(self._life, return_exceptions=True)
        self._life = None  # what it raised holds its frames, and so this
        error = self._error_of(failure)
        # What steps sample from here on nobody hears of: another pod goes on from just what is held for it.
        self._is_over = True
        if isinstance(error, HandedOver):
            await self._around.handovers.hold(self._spec, self._streams.output())
        self._watch.stamp(Phase.FINISHED, self._around.clock.now())
        # The client first: its answer does not wait until nobody can touch the blocks any more.
        self._say_ended(error)
        await self._settle()

    async def _live(self) -> None:
        try:
            async with asyncio.timeout(self._submit.deadline_s):
                if await self._is_only_sampled():
                    return
                num_computed = await self._build_prompt()
                if self._streams.is_over:
                    return
                self._watch.stamp(Phase.JOINED, self._around.clock.now())
                self._around.engine.join(self._streams.join(num_computed))
                self._has_joined = True
                await asyncio.shield(self._ended)
        except TimeoutError:
            raise self._too_late() from None

    async def _is_only_sampled(self) -> bool:
        """Have the only token of each sequence sampled elsewhere, with no block held here; False when that failed."""
        if self._is_one_token:
            await self._remote.sample(self._candidates(0))
        return self._remote.first_token is not None

    async def _build_prompt(self) -> int:
        """Reserve, and have the prompt's KV brought here; return how many of its tokens need no computing."""
        self._is_in_engine = True  # from the question on: a grant that nobody waits for any more is given back, too
        reserved = await self._reserve()
        self._hit_blocks = reserved.hit_blocks
        self._watch.stamp(Phase.RESERVED, self._around.clock.now())
        if reserved.in_parts:
            # What is behind the prompt has been said already: nobody is refused the rest of an answer.
            if self._submit.prefill == "remote" and self._submit.candidates and not self._spec.output:
                num_tokens = len(self._spec.tokens) + len(self._spec.output)
                raise InvalidRequest(
                    f"the prompt has {num_tokens} tokens, which do not fit the KV pool together; such a prompt is "
                    "computed where it decodes, and prefill is remote",
                    field="prompt",
                )
            return 0
        # For one token everybody who could was asked already.
        candidates = () if self._is_one_token else self._candidates(self._hit_blocks)
        num_blocks = self._hit_blocks
        if not candidates and not self._scores_prompt:
            num_blocks = await self._remote.fetch(self._hit_blocks)
        return await self._remote.ship(candidates, num_blocks)

    async def _reserve(self) -> Reserved:
        """Have blocks promised; raises Unavailable where what has begun elsewhere can never fit here."""
        try:
            return await self._around.admission.reserve(self._spec)
        except InvalidRequest as error:
            if not self._spec.output:
                raise
            raise Unavailable(f"{self._around.pod_id}: {error.message}", retry_after_s=0.0) from error

    @property
    def _is_built_here(self) -> bool:
        """True when what follows the prompt is not a token that a prefill pod could draw."""
        return self._scores_prompt or self._goes_on_in_parts or self._spec.sampling.use_beam_search

    @property
    def _scores_prompt(self) -> bool:
        """True when the prompt's logits are wanted: it is computed here, whole."""
        return self._spec.sampling.prompt_logprobs is not None

    @property
    def _is_one_token(self) -> bool:
        return self._spec.sampling.max_tokens - len(self._spec.output) == 1 and not self._goes_on_in_parts

    @property
    def _goes_on_in_parts(self) -> bool:
        """True for several sequences that have begun: what follows the prompt is each one's own and computed here."""
        return bool(self._spec.branches and self._spec.output)

    def _candidates(self, cached_blocks: int) -> tuple[Candidate, ...]:
        """Return who is to be asked, the soonest first; nobody when the prompt is built here.

        `cached_blocks` of its chain are cached here. Where the placement leaves it to us, predicted times decide.
        """
        candidates, num_tokens = self._submit.candidates, len(self._spec.tokens) + len(self._spec.output)
        if self._submit.prefill == "local" or self._is_built_here or not candidates:
            return ()
        costs, sources = self._around.costs, self._remote.sources
        there = sorted((costs.remote_s(num_tokens, each, sources), at) for at, each in enumerate(candidates))
        here_s = costs.local_s(num_tokens, cached_blocks, sources)
        if costs.s_per_token > 0:  # predicted in either mode: how good predictions are is known before they decide
            self._prediction = Prediction(local_s=here_s, remote_s=there[0][0])
            self._chosen_s = self._around.clock.now()
        if self._submit.prefill == "remote":
            # What was handed over is fetched whole: nothing is left to be built elsewhere.
            here, size = costs.prefix(num_tokens, cached_blocks, sources), self._around.layout.block_size
            return () if here.source is not None and num_tokens - here.num_blocks * size <= size else candidates
        if costs.s_per_token > 0 and here_s <= there[0][0]:
            return ()
        return tuple(candidates[at] for _, at in there)

    def _learn(self, calibration: Calibration, predicted_s: float) -> None:
        """Compare what was predicted with what it came to."""
        if predicted_s > 0:
            calibration.observe(predicted_s, self._around.clock.now() - self._chosen_s)

    def _on_first_token(self, message: FirstToken) -> None:
        if not self._remote.losses:
            self._learn(self._around.costs.there, self._prediction.remote_s)
        self.link.say(Tokens(records=tuple(record for record in message.records if self._streams.hear(record))))

    # ------------------------------------------------------------------------------------------------------- the end

    def _error_of(self, failure: BaseException | None) -> PagewireError | None:
        """Return the error that the client is told, None for a normal end. What the engine said of it stands."""
        if self._ended.done():
            info = self._ended.result().error
            return info.error() if info is not None else None
        if self._streams.is_over:
            return None
        if isinstance(failure, asyncio.CancelledError):
            match self._cancelled:
                case "deadline":
                    return self._too_late()
                case "handover":
                    return HandedOver(f"{self._around.pod_id} is going away", retry_after_s=0.0)
                case reason:
                    return Cancelled(f"cancelled: {reason or 'the pod stops'}")
        if isinstance(failure, EngineFailed):  # asked when it was gone already: another pod may go on with the request
            return PodLost(f"{self._around.pod_id}: {failure.message}")
        if failure is None or isinstance(failure, PagewireError):
            return failure
        log.error("%s failed", self.request_id, exc_info=failure, extra={"request_id": self.request_id})
        return EngineFailed(f"{type(failure).__name__}: {failure}")

    def _too_late(self) -> DeadlineExceeded:
        last = self._watch.timeline().stamps[-1].phase  # stamped in the order of time
        return DeadlineExceeded(f"no end within {self._submit.deadline_s:.3g} s; last: {last.value}")

    def _say_ended(self, error: PagewireError | None) -> None:
        first = self._remote.first_token
        ours = self._watch.timeline()
        timelines: tuple[Timeline, ...] = (ours, first.timeline) if first is not None else (ours,)
        self._failure = ErrorInfo.of(error) if error is not None else None
        self.link.say(
            Ended(request_id=self.request_id, error=self._failure, report=self._report(), timelines=timelines)
        )

    def _report(self) -> Report:
        return report_of(
            self._spec,
            self._remote,
            self._ended.result() if self._ended.done() else None,
            decode_pod=self._around.pod_id,
            layout=self._around.layout,
            hit_blocks=self._hit_blocks,
            prediction=self._prediction,
            notes=self._notes,
        )

    def span(self, notes: StepNotes) -> Span:
        """Return what a trace shows of it, once it is settled; `notes` are those of its steps."""
        shipments = self._remote.spans(self._around.clock.now())
        return request_span(self._watch.timeline(), self._report(), shipments, notes, failure=self._failure)

    async def _settle(self) -> None:
        """Free what is held: the prefill pod's side, then ours, once nobody writes into it."""
        await self._remote.settle()
        if self._is_in_engine and not self._ended.done():
            try:
                await self._around.engine.abort(self.request_id)
            except EngineFailed as error:
                log.info(
                    "%s: nothing to free: %s", self.request_id, error.message, extra={"request_id": self.request_id}
                )
            self._around.admission.room()
