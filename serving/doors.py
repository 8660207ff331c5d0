"""A pod's two ports, gRPC and HTTP, which stay open while the services behind them come and go.

So a pod that changes its role keeps its addresses, and nobody can take them meanwhile. Knows no service. Invariant:
while nothing is behind the doors health says NOT_SERVING, and whoever calls is told that there is no such method.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from prometheus_client.core import Metric

from pagewire.serving.grpc_server import GrpcServer
from pagewire.serving.http_port import HttpPort
from pagewire.serving.metrics import LoadCollector

CLOSE_S = 1.0


class Doors:
    """Both ports of one process; `open` binds them."""

    def __init__(self, server: GrpcServer, hall: _Hall, http: HttpPort, shown: _Shown) -> None:
        self._server = server
        self._hall = hall
        self._http = http
        self._shown = shown

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        metrics_port: int,
        *,
        credentials: grpc.ServerCredentials | None = None,
        metrics_tls: ssl.SSLContext | None = None,
    ) -> Doors:
        """Listen on both, 0 for a free port; in the clear with nothing to show. OSError where a port is taken."""
        hall, shown = _Hall(), _Shown()
        server = GrpcServer(host, port, [hall], credentials=credentials)
        await server.start()
        try:
            http = HttpPort.open(host, metrics_port, shown, lambda: shown.is_serving, tls=metrics_tls)
        except OSError:
            await server.stop(0.0)
            raise
        return cls(server, hall, http, shown)

    @property
    def address(self) -> str:
        """Where peers dial the pod, as host:port."""
        return self._server.address

    @property
    def metrics_address(self) -> str:
        """Where /metrics is, as host:port."""
        host, _, _ = self.address.rpartition(":")
        return f"{host}:{self._http.port}"

    def lead_to(self, handlers: Sequence[grpc.GenericRpcHandler], collector: LoadCollector) -> None:
        """Have these answer from now on; health does not say so yet."""
        self._hall.handlers = tuple(handlers)
        self._shown.now = collector

    def lead_nowhere(self) -> None:
        """Take in no more calls; those that were taken in go on, and metrics show what they last showed."""
        self._hall.handlers = ()

    def serving(self, is_serving: bool) -> None:
        """Set the answer of the standard health service, and of /health."""
        self._shown.is_serving = is_serving
        self._server.serving(is_serving)

    async def close(self) -> None:
        """Let go of both ports."""
        self._http.close()
        await self._server.stop(CLOSE_S)


class _Hall(grpc.GenericRpcHandler):
    """Hands a call on to whoever is behind the door when it comes."""

    def __init__(self) -> None:
        self.handlers: tuple[grpc.GenericRpcHandler, ...] = ()

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call, None for a method that nobody has."""
        found = (handler.service(handler_call_details) for handler in self.handlers)
        return next((handler for handler in found if handler is not None), None)


class _Shown:
    """Shows the metrics of whoever is behind the door, and whether it serves."""

    def __init__(self) -> None:
        self.now: LoadCollector | None = None
        self.is_serving = False

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        if self.now is not None:
            yield from self.now.collect()
