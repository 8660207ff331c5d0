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
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.http2.write_buffer_size", 32 << 20),
    # Without these, C-core's five minutes between pings end a link during a long prefill.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two processes on one port would each get half of the connections.
    ("grpc.so_reuseport", 0),
]
ERROR_DOMAIN = "pagewire"


class GrpcServer:
    """A server on one interface, with health; `port` is the real one after `start`."""

    def __init__(self, host: str, port: int, handlers: Sequence[grpc.GenericRpcHandler] = ()) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers(tuple(handlers))
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._host = host
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
            self.port = self._server.add_insecure_port(f"{self._host}:{self.port}")
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
    """Return `error` as a google.rpc.Status: ErrorInfo (reason = cause), BadRequest and RetryInfo where they apply."""
    details = [
        error_details_pb2.ErrorInfo(reason=error.cause, domain=ERROR_DOMAIN, metadata={"request_id": request_id})
    ]
    if isinstance(error, InvalidRequest) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s > 0:
        delay = duration_pb2.Duration(nanos=0)
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code_pb2.Code.Value(status_of(error).grpc), message=error.message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort(
    context: grpc.aio.ServicerContext[object, object], error: PagewireError, request_id: str = ""
) -> NoReturn:
    """End a call with `error` as a rich status."""
    await context.abort_with_status(rpc_status.to_status(rich_status(error, request_id)))
    raise AssertionError("abort_with_status always raises")
