"""One request's life in the router: placed, submitted, streamed, and continued elsewhere when its pod goes away.

    admitted -> placed -> submitted -> streaming -> finished
                  ^            |            |
                  +------------+------------+   a retryable error: another attempt with the tokens so far,
                                                within the limit of attempts and the retry budget
    any state -> failed (a named error), cancelled (the caller stopped listening)

Invariants: a token goes out once, at its position in its sequence, whatever pod it came from; an attempt that the pod
has not ended is cancelled; a request leaves its admission place exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pagewire.core.clock import Clock
from pagewire.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    HandedOver,
    Overloaded,
    PagewireError,
    Unavailable,
    status_of,
)
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Ended, Submit
from pagewire.core.sequence_spec import Branch, SequenceSpec
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.router.admission import Admission, RetryBudget
from pagewire.router.config import RouterConfig
from pagewire.router.inbox import Arrived, Inbox
from pagewire.router.intake import Intake
from pagewire.router.life import Life
from pagewire.router.metrics import RouterMetrics
from pagewire.router.placing import Placed, Placer
from pagewire.router.pods import PodPool
from pagewire.router.request import Ask, Chunk, Event, Finished, Request
from pagewire.router.sequence import Sequence
from pagewire.serving.lifecycle import Lifecycle
from pagewire.text.text_stream import TextStream
from pagewire.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# How long the report of a request that is over may take; its tokens are out already.
REPORT_WAIT_S = 5.0
# How many draining pods one request may meet before that counts as a failure like any other.
MAX_HANDOVERS = 8


class Dispatcher:
    """Runs requests to their ends; `answer` is what both front doors call."""

    def __init__(
        self,
        *,
        config: RouterConfig,
        intake: Intake,
        tokenizer: Tokenizer,
        pool: PodPool,
        placer: Placer,
        lifecycle: Lifecycle,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._config = config
        self._intake = intake
        self._tokenizer = tokenizer
        self._pool = pool
        self._placer = placer
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._clock = clock
        self._admission = Admission(config.max_concurrent)
        self._budget = RetryBudget(ratio=config.retry_ratio, burst=config.retry_burst)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def active(self) -> int:
        """Requests admitted and not ended."""
        return self._admission.active

    async def wait_idle(self) -> None:
        """Return once no request runs."""
        await self._idle.wait()

    async def answer(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """Run a request: chunks, then one `Finished`; raises a PagewireError instead where it fails.

        Close the generator to cancel the request.
        """
        start_s = self._clock.now()
        watch = Stopwatch(self._config.name)
        watch.stamp(Phase.RECEIVED, start_s)
        outcome = Cancelled.cause
        try:
            if not self._lifecycle.is_ready:
                raise Draining("this router takes no new requests", retry_after_s=1.0)
            limits = self._intake.check(ask)
            fingerprint = self._pool.fingerprint  # the request is for what it was checked against, whatever comes
            if fingerprint is None:
                raise Unavailable("no pod has been linked yet", retry_after_s=1.0)
            self._admission.enter()
            self._idle.clear()
            try:
                request = await self._intake.accept(ask, limits)
                watch.stamp(Phase.TOKENIZED, self._clock.now())
                self._budget.earn()
                async with aclosing(self._run(request, fingerprint, watch, start_s)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            outcome = ""
                            self._metrics.finished(event, event.timelines[0])
                        yield event
            finally:
                self._admission.leave(self._clock.now() - start_s)
                if self._admission.active == 0:
                    self._idle.set()
        except PagewireError as error:
            outcome = error.cause
            error.request_id = ask.request_id
            raise
        finally:
            if outcome:
                self._metrics.requests.labels(outcome).inc()

    async def _run(
        self, request: Request, fingerprint: Fingerprint, watch: Stopwatch, start_s: float
    ) -> AsyncGenerator[Event, None]:
        life = Life(
            request=request,
            prefix=await self._placer.look_up(request, fingerprint),
            sequences=tuple(self._sequence(request, index) for index in range(request.sampling.n)),
            watch=watch,
            deadline_at_s=start_s + request.timeout_s,
            internal_id=uuid.uuid4().hex,
            token_bytes=self._tokenizer.token_bytes,
        )
        while life.running:
            placed = await self._place(life)
            life.attempt += 1
            try:
                async with aclosing(self._attempt(life, placed)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except PagewireError as error:
                self._check_retry(life, placed, error)
        yield life.finished()

    def _sequence(self, request: Request, index: int) -> Sequence:
        sampling = request.sampling
        return Sequence(
            index=index,
            sampling=sampling,
            text=TextStream(self._tokenizer.detokenizer(), sampling.stop, sampling.min_tokens),
            token_bytes=self._tokenizer.token_bytes,
        )

    async def _place(self, life: Life) -> Placed:
        give_up_s = min(self._clock.now() + self._config.placement_wait_s, life.deadline_at_s)
        while True:
            placed = self._placer.place(life.request, life.prefix, life.failed_keys)
            if placed is not None:
                life.watch.stamp(Phase.PLACED, self._clock.now())
                if life.attempt == 0:
                    life.predicted_cached_tokens = placed.placement.cached_tokens
                return placed
            # Waiting helps when a pod is missing, not when every pod is full.
            left_s = give_up_s - self._clock.now()
            if self._clock.now() >= life.deadline_at_s:
                raise DeadlineExceeded(f"the deadline of {life.request.timeout_s} s passed before a pod was found")
            if isinstance(life.error, Overloaded) or left_s <= 0:
                raise life.error or Unavailable("no decode pod is in reach", retry_after_s=1.0)
            await self._pool.wait_change(left_s)

    def _check_retry(self, life: Life, placed: Placed, error: PagewireError) -> None:
        """Take note of a failed attempt; raises `error` when there must not be another."""
        log.warning("request %s, attempt %d: %s", life.request.request_id, life.attempt, error.message)
        if isinstance(error, HandedOver) and len(life.handovers) < MAX_HANDOVERS:
            # Nothing failed: it costs neither a try nor the budget.
            num_tokens = len(life.request.prompt) + len(life.running[0].output)
            life.handovers.append(placed.decode_as_source(num_tokens))
        elif not status_of(error).retryable or life.num_tries >= self._config.max_attempts or not self._budget.spend():
            raise error
        life.failed_keys.add(placed.key)
        life.error = error
        self._metrics.attempts.labels(error.cause).inc()

    async def _attempt(self, life: Life, placed: Placed) -> AsyncGenerator[Chunk, None]:
        """Submit once and pass tokens on until all sequences are over; raises where this pod cannot finish them."""
        attempt_id = f"{life.internal_id}.{life.attempt}"
        submit = self._submit(life, placed, attempt_id)
        inbox = Inbox(
            positions={each.index: len(each.output) for each in life.running},
            limit=life.request.sampling.max_tokens,
            has_logprobs=life.request.sampling.logprobs is not None,
            num_scores=life.num_scores,
            is_search=life.request.sampling.use_beam_search,
        )
        reason = "client"
        is_waiting = True
        placed.prefill_begins(len(life.request.prompt))
        try:
            placed.decode.submit(submit, inbox)
            life.watch.stamp(Phase.SUBMITTED, self._clock.now())
            while life.running:
                arrived = await self._take(inbox, life)
                if is_waiting and arrived.news:
                    is_waiting = False
                    placed.prefill_is_over(len(life.request.prompt))
                chunks = life.digest(arrived, self._clock.now())
                for chunk in chunks:
                    if chunk.ending is not None and chunk.ending.stop_text is not None:
                        placed.decode.stop(attempt_id, chunk.index)  # pods see no text
                for chunk in chunks:
                    yield chunk
            life.ended = await self._report(inbox)
        except DeadlineExceeded:
            reason = "deadline"
            raise
        finally:
            if is_waiting:
                placed.prefill_is_over(len(life.request.prompt))
            if not inbox.is_settled:
                placed.decode.cancel(attempt_id, reason)
            placed.decode.close_inbox(attempt_id)

    def _submit(self, life: Life, placed: Placed, attempt_id: str) -> Submit:
        first, *others = life.running
        sampling = life.begin_attempt()
        silent = range(sampling.n, sampling.num_sequences)  # beams that search and do not answer
        spec = SequenceSpec(
            request_id=attempt_id,
            tokens=life.request.prompt,
            sampling=sampling,
            root=life.prefix.root,
            output=tuple(first.output),
            index=first.index,
            priority=life.request.priority,
            branches=(
                *(Branch(index=each.index, output=tuple(each.output)) for each in others),
                *(Branch(index=index) for index in silent),
            ),
        )
        return Submit(
            spec=spec,
            candidates=placed.placement.candidates,
            prefill=self._config.prefill_mode.value,
            deadline_s=max(0.001, life.deadline_at_s - self._clock.now()),
            sources=(*life.handovers[-1:], *placed.sources),
        )

    async def _take(self, inbox: Inbox, life: Life) -> Arrived:
        left_s = life.deadline_at_s - self._clock.now()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                return await inbox.take()
        except TimeoutError:
            phase = f"after {life.num_output} tokens" if life.num_output else "before the first token"
            raise DeadlineExceeded(f"the deadline of {life.request.timeout_s} s passed {phase}") from None

    async def _report(self, inbox: Inbox) -> Ended | None:
        """Wait for the pod's last frame. The answer is complete without it, so its loss costs the report alone."""
        try:
            async with asyncio.timeout(REPORT_WAIT_S):
                while True:
                    arrived = await inbox.take()
                    if arrived.ended is not None:
                        return arrived.ended
        except (TimeoutError, PagewireError) as error:
            log.warning("no report of a finished request: %s", error)
            return None
