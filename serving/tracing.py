"""Which requests of this process are traced, and where their spans go.

Free where it is off: no endpoint, no `Tracing`; and a request that nobody wants traced has no context. A request is
decided about once, where it comes in: by whoever called, or else by its trace's id. OpenTelemetry is imported where an
endpoint is named and nowhere else. Knows nothing of requests: what a span holds is its maker's business.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.span import Span
from pagewire.core.trace_context import TraceContext, is_in_ratio

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OFF_VARIABLE = "OTEL_SDK_DISABLED"


@dataclass(frozen=True, slots=True)
class Process:
    """Who made a span: the service, such as "pagewire-router", and which one of it."""

    service: str
    instance: str


class Exporter(Protocol):
    """What takes spans out of the process."""

    exported: int
    dropped: int

    def put(self, process: Process, span: Span, above: TraceContext) -> None:
        """Take a tree of spans; returns at once, whatever becomes of it."""
        ...

    def close(self) -> None:
        """Send what is here, for a moment, and end."""
        ...


class Tracing:
    """The traces of one service in this process; `ratio` is the share of requests without a trace of their own."""

    def __init__(self, exporter: Exporter, process: Process, *, ratio: float = 0.0) -> None:
        self._exporter = exporter
        self._process = process
        self._ratio = ratio

    def begin(self, header: str) -> TraceContext | None:
        """Return what the spans of a request are below that came with this `traceparent`; None: it is not traced.

        Where the caller has no trace, one is begun, of which this is the first span.
        """
        above = TraceContext.parse(header) if header else None
        if above is None:
            trace_id = secrets.token_hex(16)
            above = TraceContext(trace_id, "", is_in_ratio(trace_id, self._ratio))
        return above if above.is_sampled else None

    def record(self, span: Span, above: TraceContext) -> None:
        """Show a part of a trace that is over; never blocks."""
        self._exporter.put(self._process, span, above)

    def counters(self) -> dict[str, float]:
        """Return totals since the start."""
        return {
            "trace_spans_exported": float(self._exporter.exported),
            "trace_spans_dropped": float(self._exporter.dropped),
        }


def new_span_id() -> str:
    """Return the id of a span that another process will be told of."""
    return secrets.token_hex(8)


def endpoint_of(told: str, environ: Mapping[str, str], *, is_encrypted: bool = False) -> str:
    """Return the URL of the collector, as `told` or as OpenTelemetry's variables say; "" for none.

    Without a scheme it is met in the clear. Raises ValueError where that is not said and the cluster `is_encrypted`, or
    where they ask for a protocol other than gRPC.
    """
    if environ.get(OFF_VARIABLE, "").lower() == "true":
        return ""
    endpoint = told or next((environ[name] for name in ENDPOINT_VARIABLES if environ.get(name)), "")
    if not endpoint:
        return ""
    protocol = next((environ[name] for name in PROTOCOL_VARIABLES if environ.get(name)), "grpc")
    if protocol != "grpc":
        raise ValueError(f"traces are sent by OTLP over gRPC, and the environment asks for {protocol}")
    if "://" in endpoint:
        return endpoint
    if is_encrypted:
        raise ValueError(f"the cluster speaks TLS: say https://{endpoint} for traces, or http:// for the clear")
    return f"http://{endpoint}"


def open_exporter(endpoint: str) -> Exporter | None:
    """Return what sends spans to the collector at this URL; None for "".

    Raises ValueError where the endpoint is no URL, or what it takes is not installed.
    """
    if not endpoint:
        return None
    try:
        from pagewire.serving import span_export  # noqa: PLC0415 - an extra, and not for those who trace nothing
    except ImportError as error:
        raise ValueError(f"traces to {endpoint} need what pagewire[trace] installs: {error}") from error
    make: Callable[[str], Exporter] = span_export.SpanExport
    return make(endpoint)
