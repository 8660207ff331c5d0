"""A collector that keeps what it is sent: a real OTLP service over gRPC, and trees made of the spans.

It stands in for the OpenTelemetry collector: the same protocol, nothing behind it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True, slots=True)
class Got:
    """One span as it came."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    service: str
    instance: str
    start_s: float
    end_s: float
    attributes: dict[str, Any]
    events: tuple[tuple[str, float, dict[str, Any]], ...]
    is_error: bool
    kind: int


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on a free port of this machine, by TLS with `credentials`; `spans` are those that came."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.requests = 0
        self._spans: list[Got] = []
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self.endpoint = f"{'https' if credentials else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def Export(self, request: Any, _context: Any) -> Any:
        """Take a batch."""
        got = [
            _got(span, _values(resource.resource.attributes))
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.requests += 1
            self._spans += got
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Got]:
        """Everything that came so far."""
        with self._lock:
            return list(self._spans)

    def wait(self, condition: Callable[[list[Got]], bool], timeout_s: float = 30.0) -> list[Got]:
        """Return the spans once they are as they should be."""
        until_s = time.monotonic() + timeout_s
        while not condition(spans := self.spans):
            assert time.monotonic() < until_s, "\n" + "\n".join(sorted(f"{each.service} {each.name}" for each in spans))
            time.sleep(0.02)
        return spans


def _got(span: Any, resource: dict[str, Any]) -> Got:
    return Got(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=resource["service.name"],
        instance=resource["service.instance.id"],
        start_s=span.start_time_unix_nano / 1e9,
        end_s=span.end_time_unix_nano / 1e9,
        attributes=_values(span.attributes),
        events=tuple((each.name, each.time_unix_nano / 1e9, _values(each.attributes)) for each in span.events),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        kind=span.kind,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind)
