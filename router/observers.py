"""Who hears of a request beside its caller: counters, the live page, a trace.

Knows what the dispatcher tells, decides nothing. Invariant: of each request that began, `over` is heard once.
"""

from __future__ import annotations

from pagewire.core.clock import Clock
from pagewire.core.errors import PagewireError
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.router.ask import Ask
from pagewire.router.events import Finished
from pagewire.router.life import Life
from pagewire.router.live.board import Board, Entry
from pagewire.router.metrics import RouterMetrics
from pagewire.router.models import ServedModel
from pagewire.router.request_trace import RequestTrace
from pagewire.serving.tracing import Tracing


class Observers:
    """Those of one router, which is known as `name` in timelines; without `tracing` nothing is traced."""

    def __init__(
        self, metrics: RouterMetrics, board: Board, clock: Clock, *, name: str, tracing: Tracing | None = None
    ) -> None:
        self.metrics = metrics
        self.board = board
        self.clock = clock
        self._name = name
        self._tracing = tracing

    def begin(self, ask: Ask, now_s: float) -> Observed:
        """A request came."""
        watch = Stopwatch(self._name)
        watch.stamp(Phase.RECEIVED, now_s)
        trace = RequestTrace.begin(self._tracing, ask) if self._tracing is not None else None
        return Observed(self, ask, watch, trace, now_s)

    def refused(self, error: PagewireError, model: ServedModel | None, operation: str, seconds: float) -> None:
        """A request was refused before it began, and is not traced; `model` is the one that it must be for, if any."""
        self.metrics.failed(error)
        if model is not None:
            model.counts.failed(error, operation, seconds)

    def attempt_failed(self, error: PagewireError) -> None:
        """A request is to be tried again."""
        self.metrics.attempts.labels(error.cause).inc()


class Observed:
    """What is heard of one request; `watch` holds when it came to what."""

    def __init__(
        self, observers: Observers, ask: Ask, watch: Stopwatch, trace: RequestTrace | None, start_s: float
    ) -> None:
        self.watch = watch
        self._observers = observers
        self._ask = ask
        self._trace = trace
        self._start_s = start_s
        self._model: ServedModel | None = None
        self._entry: Entry | None = None
        self._life: Life | None = None

    def is_for(self, model: ServedModel) -> None:
        """It is known which model is meant."""
        self._model = model

    def admitted(self, model: ServedModel) -> None:
        """It has its place."""
        self._entry = self._observers.board.enter(self._ask, model.title, self.watch)

    def tokenized(self) -> None:
        """Its tokens are known."""
        self.watch.stamp(Phase.TOKENIZED, self._observers.clock.now())

    def prepared(self, life: Life) -> None:
        """It is ready to be placed."""
        self.watch.stamp(Phase.LOOKED_UP, self._observers.clock.now())
        self._life = life
        if self._entry is not None:
            self._entry.life = life
        if self._trace is not None:
            life.trace = self._trace.below

    def finished(self, event: Finished) -> None:
        """All of its answers are whole."""
        if self._entry is not None:
            self._entry.finished = event
        self._observers.metrics.finished(event, event.timelines[0])
        if self._life is not None:
            self._life.model.counts.finished(event, self._life.request.sampling, self._ask.operation)

    def over(self, failure: PagewireError | None) -> None:
        """Nothing more comes of it; `failure` says of what it ended, None where it finished."""
        observers, now_s = self._observers, self._observers.clock.now()
        if failure is not None:
            observers.metrics.failed(failure)
            if self._model is not None:
                self._model.counts.failed(failure, self._ask.operation, now_s - self._start_s)
        if self._entry is not None:
            observers.board.leave(self._entry, failure.cause if failure is not None else "")
        if self._trace is not None:
            self._trace.end(self.watch.timeline(), self._life, now_s, failure)
