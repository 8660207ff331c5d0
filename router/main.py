"""The router process: serves until told to stop, drains.

Knows no request, and not what a router is made of. Invariant: nothing is admitted before the ports are open, and
nothing new after the drain began.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from pagewire.core import descriptors
from pagewire.core.errors import Draining
from pagewire.router.assembly import Router
from pagewire.router.config import RouterConfig
from pagewire.router.http_server import listen
from pagewire.router.rpc import SERVICE
from pagewire.serving.lifecycle import Lifecycle
from pagewire.serving.logs import configure
from pagewire.serving.tracing import open_exporter

log = logging.getLogger(__name__)

GRPC_CLOSE_S = 2.0
CUT_OFF_S = 1.0  # for requests that are cut off to say so
OWN_DESCRIPTORS = 128  # beside its callers': links, Redis, files, libraries

OnReady = Callable[[Mapping[str, str]], None]


async def run(config: RouterConfig, *, on_ready: OnReady, lifecycle: Lifecycle | None = None) -> None:
    """Serve until SIGTERM or SIGINT (or until `lifecycle` drains, where one is given), drain, return.

    `on_ready` is called once with the real addresses, when both ports are open. Raises OSError where a port is taken,
    ValueError or FileNotFoundError where a model's folder holds no tokenizer, two models could be mixed up, or traces
    cannot be sent as they should.
    """
    if lifecycle is None:
        configure(config.name, config.log_level, config.log_format)
        _take_descriptors(config.max_concurrent + config.max_waiting)
        lifecycle = Lifecycle()
        lifecycle.drain_on_signals()
    async with contextlib.AsyncExitStack() as stack:
        ports = (config.port, config.worker_port) if config.worker_port else (config.port,)
        listeners = [stack.enter_context(listen(config.host, port, shares=config.reuse_port)) for port in ports]
        exporter = open_exporter(config.otlp_endpoint)
        if exporter is not None:
            stack.push_async_callback(asyncio.to_thread, exporter.close)
        router = Router(config, lifecycle, exporter)
        stack.push_async_callback(router.aclose)
        stack.enter_context(_on_hangup(router.reload))
        await router.grpc.start()
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(each) for each in router.background()]
            serving = tasks.create_task(router.http.serve(sockets=listeners))
            await _ready(router, on_ready, listeners)
            await lifecycle.wait_draining()
            await _drain(router)
            await serving
            for task in background:
                task.cancel()
    lifecycle.stopped()


def _take_descriptors(num_callers: int) -> None:
    allowed = descriptors.take_all()
    if allowed < num_callers + OWN_DESCRIPTORS:
        said = "%d open files are allowed, too few for %d callers at once: who comes beyond them is hung up on"
        log.warning(said, allowed, num_callers)


async def _ready(router: Router, on_ready: OnReady, listeners: Sequence[socket.socket]) -> None:
    router.lifecycle.ready()
    router.grpc.serving(True)
    router.tell_health()
    host = router.config.host
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if router.http.config.is_ssl else "http"
    http, *own = (f"{scheme}://{shown}:{listener.getsockname()[1]}" for listener in listeners)
    addresses = {"http": http, "grpc": f"{shown}:{router.grpc.port}"}
    on_ready({**addresses, "own": own[0]} if own else addresses)


async def _drain(router: Router) -> None:
    """Finish what runs, within the drain time; new requests are refused meanwhile, by name."""
    router.grpc.serving(False, SERVICE)
    router.cache_watch.close(Draining("this router goes away", retry_after_s=1.0))
    try:
        async with asyncio.timeout(router.config.drain_s):
            await router.dispatcher.wait_idle()
    except TimeoutError:
        log.warning("%d requests are cut off by the drain time", router.dispatcher.active)
        router.dispatcher.cut_off(
            lambda: Draining("this router goes away, and the drain time is over", retry_after_s=1.0)
        )
        with contextlib.suppress(TimeoutError):  # who does not read is hung up on
            async with asyncio.timeout(CUT_OFF_S):
                await router.dispatcher.wait_idle()
    router.feed.close()
    router.http.should_exit = True
    await router.grpc.stop(GRPC_CLOSE_S)


@contextlib.contextmanager
def _on_hangup(reload: Callable[[], None]) -> Iterator[None]:
    """Call `reload` on SIGHUP; where this is no main thread there are no signals to hear."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
