"""The HTTP server: uvicorn with our ports, our certificate and our drain.

Knows no request and no route. Invariant: it is told when to stop, and hears no signal by itself.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from pagewire.core.listeners import accepted_last
from pagewire.router.http_protocol import BoundedProtocol
from pagewire.serving.tls import Tls

BACKLOG = 2048
# What the kernel holds for a client that does not read: left alone, megabytes for each. It takes twice as much as told.
SEND_BUFFER_BYTES = 128 << 10
CLOSE_S = 5  # for connections to close once their requests are settled


class HttpServer(uvicorn.Server):
    """Serves `app`, in the clear without `edge`. A request has `upload_s` to come, an answer waits `stall_s`."""

    def __init__(self, app: ASGIApp, edge: Tls | None, *, upload_s: float = 60.0, stall_s: float = 60.0) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol.bounded(upload_s, stall_s),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,  # nobody asks for the client's address
                timeout_graceful_shutdown=CLOSE_S,
                **_ssl(edge),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: the lifecycle decides when to stop."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take leave of all connections, also of those that are only just accepted, which uvicorn would lose."""
        await accepted_last(*self.servers)
        await super().shutdown(sockets)


def listen(host: str, port: int, *, shares: bool = False) -> socket.socket:
    """Return a socket to serve on, 0 for a free port; several processes may have one port where it `shares`.

    Raises OSError where the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off (40 ms on a first byte) only for sockets that say that they are TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # what is accepted inherits it
        if shares:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on port {port} of {host}: {error.strerror}") from error
    return listener


def _ssl(edge: Tls | None) -> dict[str, Any]:
    """Return what uvicorn is told of the certificate that callers are met with."""
    if edge is None:
        return {}
    context = edge.server_context()
    return {"ssl_context_factory": lambda _config, _default: context}
