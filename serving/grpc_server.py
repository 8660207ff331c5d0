"""The gRPC server that every process opens, the standard health service on it, and errors as rich statuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_status import rpc_status

from pagewire.core.errors import InvalidRequest, PagewireError, status_of

MAX_MESSAGE_BYTES = 64 << 20
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.http2.write_buffer_size", 32 << 20),
    # Without these, C-core's five minutes between pings end a link during a long prefill.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
ERROR_DOMAIN = "pagewire"
MAX_TEXT_BYTES = 1000  # of an error; trailers have 8 KiB for all, in which a text comes up to three times


class GrpcServer:
    """A server on one interface, with health; in the clear unless it has credentials.

    A client that vanished without a word is noticed after `silence_s`, and its calls end; so is one that connects and
    says nothing. A request larger than
    `max_request_bytes` ends with RESOURCE_EXHAUSTED, unread.
    `port` is the real one after `start`. Of processes that share a port each gets a part of the connections, so none
    does unless it is said.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Sequence[grpc.GenericRpcHandler] = (),
        *,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        credentials: grpc.ServerCredentials | None = None,
        shares_port: bool = False,
        max_request_bytes: int = MAX_MESSAGE_BYTES,
        silence_s: float = 40.0,
    ) -> None:
        ping_ms = max(1, round(silence_s * 750))  # a ping after three quarters of it, an answer in the last one
        options = [
            *SERVER_OPTIONS,
            ("grpc.max_receive_message_length", max_request_bytes),
            ("grpc.keepalive_time_ms", ping_ms),
            ("grpc.keepalive_timeout_ms", max(1, ping_ms // 3)),
            ("grpc.server_handshake_timeout_ms", max(1, round(silence_s * 1000))),
            ("grpc.http2.ping_timeout_ms", max(1, ping_ms // 3)),  # or it is a minute, whatever the line above says
            ("grpc.so_reuseport", int(shares_port)),
        ]
        self._server = grpc.aio.server(interceptors=interceptors, options=options)
        self._server.add_generic_rpc_handlers(tuple(handlers))
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._host = f"[{host}]" if ":" in host else host
        self._credentials = credentials
        self.port = port

    @property
    def server(self) -> grpc.aio.Server:
        """The server to add generated servicers to, before `start`."""
        return self._server

    @property
    def address(self) -> str:
        """Return host:port."""
        return f"{self._host}:{self.port}"

    async def start(self) -> None:
        """Bind and listen; raises OSError where the port is taken. Health is NOT_SERVING until told otherwise."""
        await self.serving(False)
        try:
            where = f"{self._host}:{self.port}"
            if self._credentials is None:
                self.port = self._server.add_insecure_port(where)
            else:
                self.port = self._server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._host}:{self.port}: {error}") from error
        await self._server.start()

    async def serving(self, is_serving: bool, service: str = "") -> None:
        """Set the answer of the standard health service."""
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def rich_status(error: PagewireError, request_id: str = "") -> status_pb2.Status:
    """Return `error` as a google.rpc.Status: ErrorInfo (reason = cause), BadRequest and RetryInfo where they apply.

    Long texts are cut, so that the status fits into trailers.
    """
    message = _cut(error.message, MAX_TEXT_BYTES)
    metadata = {"request_id": _cut(request_id, 128)}
    details = [error_details_pb2.ErrorInfo(reason=error.cause, domain=ERROR_DOMAIN, metadata=metadata)]
    if isinstance(error, InvalidRequest) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s > 0:
        delay = duration_pb2.Duration(nanos=0)
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code_pb2.Code.Value(status_of(error).grpc), message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _cut(text: str, num_bytes: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= num_bytes else data[: num_bytes - 3].decode(errors="ignore") + "..."


async def abort(
    context: grpc.aio.ServicerContext[object, object], error: PagewireError, request_id: str = ""
) -> NoReturn:
    """End a call with `error` as a rich status."""
    await context.abort_with_status(rpc_status.to_status(rich_status(error, request_id)))
    raise AssertionError("abort_with_status always raises")
