"""A pod's HTTP port: /metrics, /health and /live, from threads, in the clear unless there is a TLS context.

For whoever watches a pod from outside and speaks no gRPC, or not the cluster's TLS: Prometheus, Kubernetes, a
person. Knows no service. Invariants: /health is 200 while the gRPC health service would say SERVING, /live while the
event loop turns, and what neither of them nor /metrics is, is 404; who says nothing, or half a request, keeps a thread
for a bounded time, and only so many do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, generate_latest

from pagewire.serving.metrics import Shown

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)

TURN_S = 3.0  # how long the event loop may take to come round
SILENCE_S = 10.0  # how long a caller may say nothing, within a handshake or a request
CALL_S = 30.0  # how long one may take for all of it: a byte now and then is no silence
MAX_CALLERS = 64  # at once; who comes then is hung up on


class HttpPort:
    """The port, open. `port` is the real one."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self.port = server.server_port

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        shown: Shown,
        is_serving: Callable[[], bool],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> HttpPort:
        """Listen, 0 for a free port; call on the running event loop. Raises OSError where the port is taken."""
        registry = CollectorRegistry()
        registry.register(shown)  # type: ignore[arg-type]
        app = _Pages(registry, is_serving, asyncio.get_running_loop())
        kind = _Server6 if ":" in host else _Server
        server = make_server(host, port, app, kind, _Silent)
        server.tls = tls
        threading.Thread(target=server.serve_forever, name="http-port", daemon=True).start()
        return cls(server)

    def close(self) -> None:
        """Let go of the port."""
        self._server.shutdown()
        self._server.server_close()


class _Pages:
    """What the port answers; called from a thread for each request."""

    def __init__(
        self, metrics: CollectorRegistry, is_serving: Callable[[], bool], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._metrics = metrics
        self._is_serving = is_serving
        self._loop = loop

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            # As text, whatever is asked for: in OpenMetrics the library writes vllm_ where dashboards ask for vllm:.
            return _send(start_response, HTTPStatus.OK, "text/plain; version=0.0.4", generate_latest(self._metrics))
        if path == "/health":
            is_serving = self._is_serving()
            return _say(start_response, "serving" if is_serving else "not_serving", is_good=is_serving)
        if path == "/live":
            is_live = self._loop_turns()
            return _say(start_response, "live" if is_live else "stuck", is_good=is_live)
        return _say(start_response, "no such page", HTTPStatus.NOT_FOUND)

    def _loop_turns(self) -> bool:
        turned = threading.Event()
        try:
            self._loop.call_soon_threadsafe(turned.set)
        except RuntimeError:  # it is closed
            return False
        return turned.wait(TURN_S)


def _say(
    start_response: StartResponse, word: str, status: HTTPStatus = HTTPStatus.OK, *, is_good: bool = True
) -> Iterable[bytes]:
    if not is_good:
        status = HTTPStatus.SERVICE_UNAVAILABLE
    return _send(start_response, status, "application/json", json.dumps({"status": word}).encode())


def _send(start_response: StartResponse, status: HTTPStatus, kind: str, content: bytes) -> Iterable[bytes]:
    start_response(f"{status.value} {status.phrase}", [("Content-Type", kind)])
    return [content]


@contextlib.contextmanager
def _hung_up_on_after(seconds: float, request: socket.socket) -> Iterator[None]:
    """Break the connection where the body takes longer than `seconds`: what it reads and writes then fails."""
    with request.dup() as same:  # TLS takes the descriptor of the first away
        timer = threading.Timer(seconds, _hang_up, [same])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it ended meanwhile
        request.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def __init__(self, *args: Any) -> None:
        self._room = threading.BoundedSemaphore(MAX_CALLERS)
        super().__init__(*args)

    def server_bind(self) -> None:
        """Bind without asking a name server what the address is called, as the base class does."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, while there is room for one."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread begins: the place is free again
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands first, here where nobody else waits for it."""
        request.settimeout(SILENCE_S)
        with _hung_up_on_after(CALL_S, request):
            if self.tls is None:
                super().finish_request(request, client_address)
                return
            with self.tls.wrap_socket(request, server_side=True) as encrypted:
                super().finish_request(encrypted, client_address)  # type: ignore[arg-type]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of callers that go away, fall silent or show no certificate; anything else is ours."""
        error = sys.exception() if sys.version_info >= (3, 12) else sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("a request to the HTTP port ended in an error that nobody foresaw", exc_info=error)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, *_args: object) -> None:
        """Log no request: probes come every few seconds."""
