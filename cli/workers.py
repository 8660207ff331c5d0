"""A router of several processes: each accepts on the same two ports, and the kernel spreads connections over them.

    starting -> ready (the one JSON line) -> stopping -> stopped

Knows processes and ports, nothing of requests: workers share no state, each has links of its own, and what one of them
had in hand dies with it alone. A worker that ends while the router is ready is replaced. Each answers alone on one more
port, where its metrics are. Invariants: the ports stay taken from before the first worker starts until the last is
gone; when `run` returns, no process that it started is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pagewire.cli.child import Child
from pagewire.core.errors import Unavailable
from pagewire.router.config import RouterConfig

log = logging.getLogger(__name__)

START_S = 60.0
STOP_MARGIN_S = 4.0  # less than what the launcher of this process waits
RESTART_MIN_S, RESTART_MAX_S = 0.1, 5.0  # between the ends of a worker that does not come up and the next try
PROGRAM = (sys.executable, "-P", "-m", "pagewire.cli.main")


class Workers:
    """`config.workers` processes that are each told `arguments`, as this one was, and then what differs."""

    def __init__(self, config: RouterConfig, arguments: Sequence[str], program: Sequence[str] = PROGRAM) -> None:
        self._config = config
        self._command = [*program, *arguments]
        self._children: list[Child] = []
        self._up: set[Child] = set()  # those that hear signals
        self._stopping = asyncio.Event()

    async def run(self, on_ready: Callable[[Mapping[str, object]], None]) -> None:
        """Keep the workers until SIGTERM or SIGINT, then drain them; SIGHUP is passed on to each.

        Raises Unavailable where one does not start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        config = self._config
        with contextlib.ExitStack() as ports:
            firsts = [config.worker_port + index if config.worker_port else 0 for index in range(config.workers)]
            for port in () if config.reuse_port else (config.port, config.grpc_port, *firsts):
                _check_free(config.host, port)
            http, grpc = (ports.enter_context(_taken(config.host, port)) for port in (config.port, config.grpc_port))
            own = [ports.enter_context(_taken(config.host, port)) for port in firsts]
            flags = [
                ["--workers=1", "--reuse-port", f"--port={http}", f"--grpc-port={grpc}", f"--worker-port={port}"]
                for port in own
            ]
            flags = [[*each, "--name", f"{config.name}-{index}"] for index, each in enumerate(flags)]
            try:
                children = [await self._start(each) for each in flags]
                said = await asyncio.gather(*(self._ready(child) for child in children))
                on_ready(_summary(children, said))
                keepers = [asyncio.create_task(self._keep(*each)) for each in zip(children, flags, strict=True)]
                await self._stopping.wait()
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)
            finally:
                await self._stop()

    def _reload(self) -> None:
        for child in self._up:
            child.tell(signal.SIGHUP)

    async def _start(self, flags: list[str]) -> Child:
        environ = {**os.environ, "PYTHONSAFEPATH": "1"}
        child = await Child.start(flags[-1], "router", [*self._command, *flags], environ)
        self._children.append(child)
        return child

    async def _ready(self, child: Child) -> dict[str, Any]:
        said = await child.ready(START_S)
        self._up.add(child)
        child.tell(signal.SIGHUP)  # what was renewed while it started
        return said

    async def _keep(self, child: Child, flags: list[str]) -> None:
        """Replace a worker whenever it ends, until cancelled."""
        while True:
            code = await child.exited()
            log.warning("%s ended with exit code %d; another one takes its place", child.name, code)
            self._forget(child)
            child = await self._replacement(flags)

    async def _replacement(self, flags: list[str]) -> Child:
        """Start another worker, and again until one is ready."""
        delay_s = RESTART_MIN_S
        while True:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RESTART_MAX_S)
            try:
                child = await self._start(flags)
            except OSError as error:  # no process, no memory, no descriptor for it: there may be some later
                log.error("%s cannot be started: %s", flags[-1], error)
                continue
            try:
                await self._ready(child)
            except Unavailable as error:
                log.error("%s", error.message)
                child.kill()
                await child.exited()
                self._forget(child)
            else:
                return child

    def _forget(self, child: Child) -> None:
        self._children.remove(child)
        self._up.discard(child)

    async def _stop(self) -> None:
        async with asyncio.TaskGroup() as stops:
            for child in self._children:
                stops.create_task(child.stop(self._config.drain_s + STOP_MARGIN_S))


def _summary(children: Sequence[Child], said: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the router's JSON line: the ports that all share, and where each worker answers alone."""
    workers = [{"pid": child.pid, "http": each["own"]} for child, each in zip(children, said, strict=True)]
    return {"http": said[0]["http"], "grpc": said[0]["grpc"], "workers": workers}


@contextlib.contextmanager
def _taken(host: str, port: int) -> Iterator[int]:
    """Hold `port`, or a free one for 0, for processes that share it: bound and not listening, it gets no connection."""
    with _bound(host, port, shares=True) as holder:
        yield holder.getsockname()[1]


def _check_free(host: str, port: int) -> None:
    """Raise OSError where another listens: to share a port is asked of all who share it, and of this router nobody."""
    _bound(host, port, shares=False).close()


def _bound(host: str, port: int, *, shares: bool) -> socket.socket:
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares))
        holder.bind((host, port))
    except OSError as error:
        holder.close()
        raise OSError(f"cannot listen on port {port} of {host}: {error.strerror}") from error
    return holder
