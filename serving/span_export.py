"""Sends spans to an OpenTelemetry collector, from a thread of its own.

The only file that knows OpenTelemetry's SDK. What is put here waits in a bounded queue; where that is full, or the
collector does not take it, it is dropped and counted, and told in the log when that begins and when it is over.
Invariant: `put` neither blocks nor raises.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import grpc
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.grpc import exporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace import SpanProcessor as Processor
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from pagewire.core.span import Span, SpanKind
from pagewire.core.trace_context import TraceContext
from pagewire.serving.collector_tls import collector_tls
from pagewire.serving.tracing import Process

log = logging.getLogger(__name__)

MAX_WAITING = 4096  # spans
MAX_BATCH = 512  # spans, or one request's, if those are more
LINGER_S = 0.2  # how long the first of a batch waits for others
TIMEOUT_S = 5.0  # of sending a batch, with all its tries
CLOSE_S = 2.0
SCOPE = "pagewire"
_KINDS = {
    SpanKind.INTERNAL: otel.SpanKind.INTERNAL,
    SpanKind.SERVER: otel.SpanKind.SERVER,
    SpanKind.CLIENT: otel.SpanKind.CLIENT,
}

_SAMPLED = otel.TraceFlags(otel.TraceFlags.SAMPLED)

_Waiting = tuple[Process, Span, TraceContext]
_Wall = Callable[[float], int]
"""A moment of this process's monotonic clock as nanoseconds of the wall clock."""


class SpanExport:
    """One process's way out. Raises ValueError where `endpoint` is no URL, or its certificates cannot be used."""

    def __init__(self, endpoint: str) -> None:
        self.exported = 0
        self.dropped = 0
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._num_waiting = 0  # spans; touched with the lock
        self._lock = threading.Lock()
        self._writers: dict[Process, _Writer] = {}
        scheme, _, where = endpoint.partition("://")
        if scheme not in ("http", "https") or not where:
            raise ValueError(f"the endpoint of traces is http://HOST:PORT or https://HOST:PORT, not {endpoint!r}")
        self._endpoint = endpoint
        self._tls = collector_tls(os.environ) if scheme == "https" else None
        self._credentials = self._tls.now() if self._tls is not None else None
        self._dropped_before: int | None = None  # the collector was lost, where it is
        self._complaints = _Complaints()
        try:
            self._exporter = self._open(self._credentials)
        except BaseException:
            self._complaints.end()
            raise
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    def put(self, process: Process, span: Span, above: TraceContext) -> None:
        """Take a tree of spans, or drop it where too many wait."""
        with self._lock:
            if self._num_waiting + len(span) > MAX_WAITING:
                self.dropped += len(span)
                return
            self._num_waiting += len(span)
        self._waiting.put((process, span, above))

    def close(self) -> None:
        """Send what waits, and wait for that a moment at most."""
        self._waiting.put(None)
        self._thread.join(CLOSE_S)
        self._exporter.shutdown()  # ends what it still tries
        self._complaints.end()

    def _open(self, credentials: grpc.ChannelCredentials | None) -> OTLPSpanExporter:
        is_clear = self._endpoint.startswith("http:")
        return OTLPSpanExporter(self._endpoint, is_clear, credentials, timeout=TIMEOUT_S)

    def _renew(self) -> None:
        """Meet the collector anew where what it is met with has changed: an open channel keeps what it began with."""
        if self._tls is None or (credentials := self._tls.now()) is self._credentials:
            return
        before, self._exporter = self._exporter, self._open(credentials)
        self._credentials = credentials
        before.shutdown()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = list(self._batch())
            is_open = batch[-1] is not None
            items = [item for item in batch if item is not None]
            try:
                is_sent = self._send(items)
            except Exception:  # our own bug in one batch must not stop all that come after it
                log.exception("a batch of spans was not sent")
                is_sent = False
            self._settle(sum(len(span) for _, span, _ in items), is_sent)

    def _batch(self) -> Iterator[_Waiting | None]:
        """Yield what goes out together, once there is something; None is the last that ever comes."""
        item, num_spans = self._waiting.get(), 0
        until_s = time.monotonic() + LINGER_S
        while True:
            yield item
            num_spans += len(item[1]) if item is not None else 0
            if item is None or num_spans >= MAX_BATCH:
                return
            try:
                item = self._waiting.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                return

    def _send(self, items: Sequence[_Waiting]) -> bool:
        spans: list[ReadableSpan] = []
        for process, span, above in items:
            writer = self._writers.get(process)
            if writer is None:
                writer = self._writers[process] = _Writer(process)
            spans += writer.write(span, above)
        if not spans:
            return True
        self._renew()
        is_sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        self._tell(is_sent)
        return is_sent

    def _tell(self, is_sent: bool) -> None:
        """Log that the collector is lost, or back: once, however many batches there are."""
        if is_sent and self._dropped_before is not None:
            num_dropped, self._dropped_before = self.dropped - self._dropped_before, None
            log.info("spans reach the collector at %s again; %d were dropped meanwhile", self._endpoint, num_dropped)
        elif not is_sent and self._dropped_before is None:
            self._dropped_before = self.dropped
            text = "spans do not reach the collector at %s, and are dropped until they do: %s"
            log.warning(text, self._endpoint, self._complaints.latest)

    def _settle(self, num_spans: int, is_sent: bool) -> None:
        with self._lock:
            self._num_waiting -= num_spans
            if is_sent:
                self.exported += num_spans
            else:
                self.dropped += num_spans


class _Complaints(logging.Filter):
    """Keeps what OpenTelemetry logs of each try and each batch out of the log; the latest of it is why."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = "no reason was told"  # as where another export of this process takes the lines
        exporter.logger.filters.insert(0, self)  # before its own, which keeps out what it said a moment ago

    def filter(self, record: logging.LogRecord) -> bool:
        """Take a line."""
        self.latest = record.getMessage()
        return False

    def end(self) -> None:
        """Keep nothing out any more."""
        exporter.logger.removeFilter(self)


class _Writer:
    """Turns one service's spans into OpenTelemetry's, on the exporting thread alone."""

    def __init__(self, process: Process) -> None:
        self._ids = _Ids()
        self._done = _Done()
        provider = TracerProvider(
            sampler=ALWAYS_ON,  # what comes here was decided about
            resource=Resource.create({"service.name": process.service, "service.instance.id": process.instance}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._done)
        self._tracer = provider.get_tracer(SCOPE)

    def write(self, span: Span, above: TraceContext) -> list[ReadableSpan]:
        """Return a tree, the parts before what they are parts of."""
        wall_ns, now_s = time.time_ns(), time.monotonic()
        self._ids.trace_id = int(above.trace_id, 16)
        context = None
        if above.span_id:
            context = otel.SpanContext(int(above.trace_id, 16), int(above.span_id, 16), True, _SAMPLED)
        self._write(span, context, lambda at_s: wall_ns - round((now_s - at_s) * 1e9))
        return self._done.take()

    def _write(self, span: Span, above: otel.SpanContext | None, wall: _Wall) -> None:
        self._ids.span_id = int(span.span_id, 16) if span.span_id else None
        parent = otel.set_span_in_context(otel.NonRecordingSpan(above or otel.INVALID_SPAN_CONTEXT))
        written = self._tracer.start_span(
            span.name, parent, _KINDS[span.kind], dict(span.attributes), start_time=wall(span.start_s)
        )
        for each in span.marks:
            written.add_event(each.name, dict(each.attributes), wall(each.at_s))
        if span.error:
            written.set_attribute("error.type", span.error)
            written.set_status(otel.Status(otel.StatusCode.ERROR, span.error))
        for part in span.parts:
            self._write(part, written.get_span_context(), wall)
        written.end(wall(max(span.start_s, span.end_s)))


class _Ids(IdGenerator):
    """The ids that were told to other processes, and random ones for all else."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id: int | None = None
        self._random = RandomIdGenerator()

    def generate_trace_id(self) -> int:
        """Return the id of the trace that is being written."""
        return self.trace_id

    def generate_span_id(self) -> int:
        """Return the id of the next span."""
        return self._random.generate_span_id() if self.span_id is None else self.span_id


class _Done(Processor):
    """Gathers spans as they end."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Take one."""
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """Return what ended since the last call."""
        taken, self._spans = self._spans, []
        return taken
