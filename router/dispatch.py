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
import math
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager

from pagewire.core.clock import Clock
from pagewire.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    HandedOver,
    InvalidRequest,
    Overloaded,
    PagewireError,
    PodLost,
    Unavailable,
    named,
    status_of,
)
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Ended
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.router.admission import Admission
from pagewire.router.ask import Ask
from pagewire.router.bill import Bill
from pagewire.router.config import RouterConfig
from pagewire.router.events import Chunk, Event, Finished, Sink
from pagewire.router.inbox import Inbox
from pagewire.router.life import Life, sequences_of
from pagewire.router.models import Models, ServedModel
from pagewire.router.observers import Observers
from pagewire.router.places import Place
from pagewire.router.placing import Placed
from pagewire.router.refusals import Refused
from pagewire.router.request import Request
from pagewire.router.retry_budget import RetryBudget
from pagewire.router.several import together
from pagewire.router.short_way import ShortWay
from pagewire.router.slo_gate import READ_WITHIN
from pagewire.router.tenants import ANONYMOUS, Tenant
from pagewire.router.trial import Trial
from pagewire.router.turns import Turn, Turns
from pagewire.serving.lifecycle import Lifecycle

log = logging.getLogger(__name__)

# How long the report of a request that is over may take; its tokens are out already.
REPORT_WAIT_S = 5.0
MAX_PREPARED = 4  # requests at a time: while one waits for Redis, another has the thread
# How many draining pods one request may meet before that counts as a failure like any other.
MAX_HANDOVERS = 8
# What pods name where a request can never fit their pools: what makes it long or wide. They have no cause for it of its
# own, which a router of an older version would take for a failure of the pod.
SIZES = frozenset({"prompt", "max_tokens", "n"})


class Dispatcher:
    """Runs requests to their ends; `answer` is what both front doors call."""

    def __init__(
        self,
        *,
        config: RouterConfig,
        models: Models,
        lifecycle: Lifecycle,
        observers: Observers,
        clock: Clock,
    ) -> None:
        self._config = config
        self._models = models
        self._lifecycle = lifecycle
        self._observers = observers
        self._clock = clock
        self._admission = Admission(config.max_concurrent)
        self._budget = RetryBudget(ratio=config.retry_ratio, burst=config.retry_burst)
        self.turns = Turns(MAX_PREPARED, clock, self._patience_s)
        self._idle = asyncio.Event()
        self._idle.set()
        self._num_early = 0  # requests that came before any pod
        self._inboxes: set[Inbox] = set()  # of the attempts that run
        self._cut_off: Callable[[], PagewireError] | None = None

    @property
    def active(self) -> int:
        """Requests admitted and not ended."""
        return self._admission.active

    def most_at_once(self, tenant: Tenant) -> int:
        """Return how many requests of a tenant may ever run side by side."""
        return self._admission.most(tenant)

    def _patience_s(self) -> float:
        """Return how long a request may wait until it is prepared: for ever, unless late ones are refused now."""
        is_pressed = any(model.entrance.gate.is_pressed(self._clock) for model in self._models)
        return READ_WITHIN * self._config.slo_ttft_s if is_pressed else math.inf

    @contextmanager
    def coming(self, tenant: Tenant) -> Iterator[None]:
        """Count a request among its tenant's from its head on, until it has its turn.

        Raises Refused where this tenant gets no place, whatever it asks for: nothing of that need be read.
        """
        self._check_places(tenant)
        with self.uploading(tenant):
            yield

    def uploading(self, tenant: Tenant) -> AbstractContextManager[None]:
        """Count what comes of a tenant; raises Refused where it sends as many as it may have in, whatever for."""
        return self._admission.coming(self._clock.now(), tenant)

    def _check_places(self, tenant: Tenant) -> None:
        """Raise Refused where a tenant gets no place: those that wait to be read already are to have theirs first.

        Of several models it depends on which is meant, but for the tenant's own places.
        """
        if not self._lifecycle.is_ready:  # one that goes away says that first
            return
        model, now_s = self._models.sole, self._clock.now()
        if model is None:
            self._admission.check_tenant(now_s, tenant)
            return
        self._admission.check(now_s, tenant)
        ahead = self._admission.num_unread
        if (gate := model.entrance.gate).places.is_full(ahead):
            gate.check(now_s, ahead)

    async def turn(self, here_for_s: float) -> Turn:
        """Wait for the turn of a request that came `here_for_s` ago and is not read, and return it.

        Raises Refused where it would wait for too long, or those that came before it leave it no place: among its
        tenant's it has one.
        """
        self._check_places(ANONYMOUS)
        with self._admission.unread():
            return await self.turns.take(here_for_s)

    def refused_unread(self, error: Refused, operation: str, seconds: float) -> None:
        """Count a request that was refused after `seconds`, before anybody knew which model it is for."""
        self._observers.refused(error, self._models.sole, operation, seconds)

    def refused_unasked(
        self, error: PagewireError, model: ServedModel | None = None, operation: str = "", since_s: float = 0.0
    ) -> None:
        """Count a request that was read and is not to be asked to `answer`, here `since_s`; `model` where it is known.

        `answer` counts what it is asked itself.
        """
        self._observers.refused(error, model, operation, self._clock.now() - since_s)

    async def wait_idle(self) -> None:
        """Return once no request runs."""
        await self._idle.wait()

    def cut_off(self, why: Callable[[], PagewireError]) -> None:
        """End every request with an error of its own, once what has come of it is out; none is tried again."""
        self._cut_off = why
        for model in self._models:
            model.entrance.close(why)
        for inbox in self._inboxes:
            inbox.expire(why())

    async def settled(self, name: str, turn: Turn | None = None) -> None:
        """Wait until it is known which model `name` means and what its pods serve: for its first pod, if not too long.

        Nothing of such a request can be checked before, so it is not admitted yet; its turn is over. Raises Draining
        where the router goes away, Unavailable where too many wait.
        """
        if self._models.is_settled(name) or not self._lifecycle.is_ready:
            return
        if self._num_early >= self._config.max_waiting:
            raise Unavailable("no pod has been linked yet", retry_after_s=1.0)
        if turn is not None:
            turn.over()
        self._num_early += 1
        try:
            await self._models.until_settled(name, self._config.placement_wait_s)
        finally:
            self._num_early -= 1
        if not self._lifecycle.is_ready:
            raise Draining("this router takes no new requests", retry_after_s=1.0)

    def answer_all(self, asks: Sequence[Ask]) -> AsyncGenerator[Event, None]:
        """Run several prompts of one tenant as one request: none runs before all are prepared, paid and let in."""
        bill = self._bill(asks[0].tenant, len(asks))
        return together([self.answer(ask, bill=bill) for ask in asks], asks[0].n or 1)

    async def answer(
        self, ask: Ask, turn: Turn | None = None, sink: Sink | None = None, bill: Bill | None = None
    ) -> AsyncGenerator[Event, None]:
        """Run a request: `Begun`, chunks, then one `Finished`; raises a PagewireError instead where it fails.

        `turn` is the one in which the caller has read the ask, and is over when this is prepared; without it, it takes
        one. Chunks may be put in `sink` in the place of being yielded. `bill` is what it pays with others, if it does.
        Close the generator to cancel the request.
        """
        start_s = self._clock.now() if turn is None else turn.asked_s
        observed = self._observers.begin(ask, start_s)
        failure: PagewireError | None = Cancelled("nobody listens any more")
        try:
            if not self._lifecycle.is_ready:
                raise Draining("this router takes no new requests", retry_after_s=1.0)
            await self.settled(ask.model, turn)
            model = self._models.of(ask.model)
            observed.is_for(model)
            limits = model.intake.check(ask)
            fingerprint = model.pool.fingerprint  # the request is for what it was checked against, whatever comes
            if fingerprint is None:
                raise Unavailable("no pod has been linked yet", retry_after_s=1.0)
            with self._place(model, ask.tenant) as place:
                observed.admitted(model)
                with turn or await self.turns.take() as turn:
                    if not model.intake.is_inline(ask):
                        turn.over()  # a thread has the work
                    request = await model.intake.accept(ask, limits)
                    observed.tokenized()
                    self._budget.earn()
                    life = await self._life(model, ask, request, fingerprint, observed.watch, start_s, place)
                    observed.prepared(life)
                delivery = model.intake.delivery(ask, request)
                short_way = ShortWay(life, delivery, sink, self._clock) if sink is not None else None
                bill = bill or self._bill(ask.tenant, 1)
                async with aclosing(self._run(life, ask.tenant, bill, short_way)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            failure = None
                            observed.finished(event)
                        if (told := delivery.take(event)) is not None:
                            yield told
        except PagewireError as error:
            failure = error
            error.request_id = ask.request_id
            raise
        except Exception as error:
            # Both doors say the same of what nobody foresaw, and the log has the rest.
            log.exception(
                "request %s ended in an error that nobody foresaw", ask.request_id, extra={"request_id": ask.request_id}
            )
            failure = named(error)
            failure.request_id = ask.request_id
            raise failure from error
        finally:
            observed.over(failure)
            failure = None  # or it and this frame, and so the prompt, would keep each other

    @contextmanager
    def _place(self, model: ServedModel, tenant: Tenant) -> Iterator[Place]:
        """A place in the router, and one among those of the model who meet their objectives; raises Refused."""
        gate = model.entrance.gate
        self._admission.enter(self._clock.now(), tenant)
        self._idle.clear()
        try:
            place = gate.enter(self._clock.now())
            try:
                yield place
            finally:
                gate.places.leave(place, self._clock.now())
        finally:
            self._admission.leave(self._clock.now(), tenant)
            if self._admission.active == 0:
                self._idle.set()

    def _bill(self, tenant: Tenant, num_prompts: int) -> Bill:
        return Bill(num_prompts, lambda tokens: self._admission.charge(tokens, self._clock.now(), tenant))

    async def _run(
        self, life: Life, tenant: Tenant, bill: Bill, short_way: ShortWay | None
    ) -> AsyncGenerator[Event, None]:
        counts = life.model.counts
        counts.enter(life)
        try:
            await bill.share(life.num_prompt)
            while life.running:
                life.begin_try(self._clock.now())
                life.is_let_in = bill.lets_in
                placed = await life.model.entrance.place(life)
                bill.placed()
                life.try_on(placed, self._clock.now())
                try:
                    async with aclosing(self._attempt(life, placed, short_way)) as chunks:
                        async for chunk in chunks:
                            if not life.has_begun:
                                yield life.begun()
                            yield chunk
                except PagewireError as error:
                    self._check_retry(life, placed, error)
            finished = life.finished()
            if life.placed is not None:
                life.model.placer.learn(life.placed, finished)
            yield finished
        finally:
            counts.leave(life)
            _end_handovers(life)
            now_s = self._clock.now()
            if bill.is_paid:
                self._admission.settle(life.num_charged, now_s, tenant)
            if life.forecast is not None and life.running:
                life.forecast.given_up(now_s)

    async def _life(
        self,
        model: ServedModel,
        ask: Ask,
        request: Request,
        fingerprint: Fingerprint,
        watch: Stopwatch,
        start_s: float,
        place: Place,
    ) -> Life:
        most = request.sampling.max_tokens
        return Life(
            model=model,
            request=request,
            prefix=await model.lookup.look_up(request, fingerprint),
            sequences=sequences_of(model, request),
            watch=watch,
            received_s=start_s,
            deadline_at_s=start_s + request.timeout_s,
            answer_tokens=most if ask.max_tokens == most else min(most, self._config.open_answer_tokens),
            internal_id=uuid.uuid4().hex,
            place=place,
        )

    def _check_retry(self, life: Life, placed: Placed, error: PagewireError) -> None:
        """Take note of a failed attempt; raises `error` when there must not be another."""
        log.warning(
            "request %s, attempt %s: %s",
            life.request.request_id,
            life.attempt_id,
            error.message,
            extra={"request_id": life.request.request_id},
        )
        life.num_refused += _is_refused_unbuilt(life, error)
        if self._cut_off is not None:
            raise self._cut_off()
        if isinstance(error, HandedOver) and life.num_handovers < MAX_HANDOVERS:
            life.handed_over(placed)  # nothing failed: it costs neither a try nor the budget
        elif is_too_much(error) and self._is_for_a_larger_pool(life, placed):
            pass  # no failure of anybody: it costs a try, and nothing of the budget
        elif is_too_much(error) and life.error is not None and status_of(life.error).retryable:
            raise life.error  # from a pod that would have had room: to come back later helps
        elif not status_of(error).retryable or life.num_tries >= self._config.max_attempts or not self._budget.spend():
            raise _told(error)
        life.failed_keys.add(placed.key)
        life.error = _told(error)
        life.forecast = None  # what was expected was not expected of this
        life.model.entrance.gate.places.forget(life.place)
        self._observers.attempt_failed(error)

    def _is_for_a_larger_pool(self, life: Life, placed: Placed) -> bool:
        """What was too much for one pool may be right for a larger one; leave it to those, where there are any."""
        is_over = life.num_output or life.num_tries >= self._config.max_attempts
        return not is_over and life.model.entrance.leave_to_larger(life, placed)

    async def _attempt(self, life: Life, placed: Placed, short_way: ShortWay | None) -> AsyncGenerator[Chunk, None]:
        """Submit once and pass tokens on until all sequences are over; raises where this pod cannot finish them."""
        attempt_id = life.attempt_id
        submit = life.submit(placed, attempt_id, self._clock.now())
        inbox = Inbox(
            positions={each.index: len(each.output) for each in life.running},
            limit=life.request.sampling.max_tokens,
            clock=self._clock,
            has_logprobs=life.request.sampling.logprobs is not None,
            num_scores=life.num_scores,
            is_search=life.request.sampling.use_beam_search,
        )
        reason = "client"
        is_waiting = True
        placed.prefill_begins(len(life.request.prompt))
        trial = Trial(life.model.pool.ejection, placed)
        # One timer for the attempt: one for each token would cost as much as the token does.
        left_s = max(0.0, life.deadline_at_s - self._clock.now())
        deadline = asyncio.get_running_loop().call_later(left_s, lambda: inbox.expire(life.too_late()))
        try:
            self._inboxes.add(inbox)
            # Before: whoever is short of processor time may have the answer by the time that it is back from sending.
            life.watch.stamp(Phase.SUBMITTED, self._clock.now())
            placed.decode.submit(submit, inbox)
            while life.running:
                arrived = await inbox.take()
                if is_waiting and arrived.news:
                    is_waiting = False
                    placed.prefill_is_over(len(life.request.prompt))
                    _end_handovers(life)
                    if short_way is not None:
                        inbox.shorten(short_way.take)
                chunks = life.digest(arrived)
                for chunk in chunks:
                    if chunk.ending is not None and chunk.ending.stop_text is not None:
                        placed.decode.stop(attempt_id, chunk.index)  # pods see no text
                for chunk in chunks:
                    yield chunk
            deadline.cancel()
            life.ended = await self._report(inbox)
            trial.succeeded(life)
        except PagewireError as error:
            reason = "deadline" if isinstance(error, DeadlineExceeded) else reason
            life.tries[-1].error = error.cause
            trial.failed(error)
            raise
        finally:
            life.tries[-1].ended_s = self._clock.now()
            deadline.cancel()
            self._inboxes.discard(inbox)
            life.num_searched = inbox.num_searched
            trial.end()
            life.model.entrance.leave(life, placed)
            if is_waiting:
                placed.prefill_is_over(len(life.request.prompt))
            if not inbox.is_settled:
                placed.decode.cancel(attempt_id, reason)
            placed.decode.close_inbox(attempt_id)

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


def is_too_much(error: PagewireError) -> bool:
    """True where a pod refused what one with a larger pool might take."""
    return isinstance(error, InvalidRequest) and error.field in SIZES


def _is_refused_unbuilt(life: Life, error: PagewireError) -> bool:
    """True where the pod had nothing of the prompt computed: what a grammar is shows before that."""
    grammar = life.request.sampling.grammar
    is_no_grammar = isinstance(error, InvalidRequest) and grammar is not None and error.field == grammar.field
    return isinstance(error, Overloaded | Draining) or is_too_much(error) or is_no_grammar


def _told(error: PagewireError) -> PagewireError:
    """Return what a caller hears of a failed attempt: whom a pod meant to hand it over to is nothing to a caller."""
    return PodLost(error.message, retry_after_s=1.0) if isinstance(error, HandedOver) else error


def _end_handovers(life: Life) -> None:
    """Tell the pods that gave a request up: whoever goes on with it has what it wants of its KV, or nobody does."""
    for each in life.handovers:
        each.placed.decode.cancel(each.attempt_id, "moved")
    life.handovers.clear()
