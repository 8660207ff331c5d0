"""The gRPC server that every process opens, with the standard health service on it."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from pagewire.serving.health_service import HealthService

MAX_MESSAGE_BYTES = 64 << 20
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.write_buffer_size", 32 << 20),
    # Without these, C-core's five minutes between pings end a link during a long prefill.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


class GrpcServer:
    """A server on one interface, with health; in the clear unless it has credentials.

    A client that vanished without a word is noticed after `silence_s`, and its calls end; so is one that connects and
    says nothing. A request larger than `max_request_bytes` ends with RESOURCE_EXHAUSTED, unread. A call may send
    `unread_bytes` beyond what is read of it; None: tens of MiB, as blocks want that come in at full rate.
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
        unread_bytes: int | None = None,
        silence_s: float = 40.0,
    ) -> None:
        ping_ms = max(1, round(silence_s * 750))  # a ping after three quarters of it, an answer in the last one
        options = [
            *SERVER_OPTIONS,
            ("grpc.max_receive_message_length", max_request_bytes),
            ("grpc.http2.lookahead_bytes", MAX_MESSAGE_BYTES if unread_bytes is None else unread_bytes),
            ("grpc.http2.bdp_probe", int(unread_bytes is None)),  # it would raise that by the connection's rate
            ("grpc.keepalive_time_ms", ping_ms),
            ("grpc.keepalive_timeout_ms", max(1, ping_ms // 3)),
            ("grpc.server_handshake_timeout_ms", max(1, round(silence_s * 1000))),
            ("grpc.http2.ping_timeout_ms", max(1, ping_ms // 3)),  # or it is a minute, whatever the line above says
            ("grpc.so_reuseport", int(shares_port)),
        ]
        self._server = grpc.aio.server(interceptors=interceptors, options=options)
        self._health = HealthService()
        self._server.add_generic_rpc_handlers((*handlers, self._health.handler()))
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
        try:
            where = f"{self._host}:{self.port}"
            if self._credentials is None:
                self.port = self._server.add_insecure_port(where)
            else:
                self.port = self._server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._host}:{self.port}: {error}") from error
        await self._server.start()

    def serving(self, is_serving: bool, service: str = "") -> None:
        """Set the answer of the standard health service."""
        self._health.set(is_serving, service)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s` seconds."""
        self._health.close()
        await self._server.stop(grace_s)
