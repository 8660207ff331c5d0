"""A cluster on this machine: Valkey, pods and a router, each its own process, up together and gone together.

    starting -> ready (the one JSON line) -> stopping -> stopped

A pod that dies while the cluster is ready is reported and left dead, because the others go on without it; the
router's death ends the cluster. Invariant: when `run` returns, no process that it started is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from pagewire.cli import priority, valkey
from pagewire.cli.child import Child
from pagewire.cli.cluster_config import ClusterConfig
from pagewire.cli.cluster_secret import cluster_secret
from pagewire.cli.cluster_tls import POD, ClusterTls
from pagewire.cli.flags import variables
from pagewire.cli.progress import say
from pagewire.core import cores
from pagewire.core.config import settings
from pagewire.core.errors import Unavailable
from pagewire.router.config import RouterConfig
from pagewire.serving.pod_config import KEPT_BYTES_PER_S, KV_MEMORY, PodConfig
from pagewire.slo.figures.redaction import bare

HEALTH_POLL_S = 0.1
KILL_MARGIN_S = 5.0
KEEP_S = 60.0  # and more where pods write what they cached to a disk: at least as long as in the chart
# Where processors are short, everybody waits for the router: it answers those that pods are not even asked for.
POD_NICENESS = 5
ROUTER = "router"
# The router first, so that nothing new comes in, and Valkey last.
STOP_ORDER = ({ROUTER}, {"decode", "colocated"}, {"prefill"}, {valkey.ROLE})


class Cluster:
    """The processes of one cluster; `model` is the folder of its model."""

    def __init__(
        self,
        config: ClusterConfig,
        model: Path,
        environ: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m", "pagewire.cli.main"),
    ) -> None:
        self._config = config
        # Pods of two clusters on one Redis have the same names: what tells them apart is their cluster's.
        self._name = config.cluster or f"up-{secrets.token_hex(4)}"
        self._program = program
        self._model = model
        # What was meant for this command must not reach a service by another meaning of the same name.
        own = variables(ClusterConfig)
        self._environ = {name: value for name, value in environ.items() if name not in own}
        self._environ["PYTHONSAFEPATH"] = "1"
        self._children: list[Child] = []
        self._stopping = asyncio.Event()
        self._tls: ClusterTls | None = None

    async def run(self) -> None:
        """Start everything, print the JSON line, stay until interrupted. Raises Unavailable where something fails."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, self._interrupt)
        with tempfile.TemporaryDirectory(prefix="pagewire-") as scratch, _logs(self._config.log_dir) as logs:
            try:
                started = await self._until_stopping(self._start(Path(scratch), logs))
                if started is not None:
                    print(json.dumps(started), flush=True)
                    say("ready; interrupt to stop")
                    await self._until_stopping(self._watch())
            finally:
                await self._stop()

    def _interrupt(self) -> None:
        if self._stopping.is_set():
            say("interrupted again: killing")
            for child in self._children:
                child.kill()
        self._stopping.set()

    async def _until_stopping(self, work: Any) -> Any:
        """Return what `work` returns, or None when the cluster is told to stop first."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self._stopping.wait())
        stop.add_done_callback(lambda _stop: task.cancel())
        try:
            return await task
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            return None
        finally:
            stop.cancel()

    async def _start(self, scratch: Path, logs: Path) -> dict[str, Any]:
        config = self._config
        if config.is_encrypted:
            self._tls = ClusterTls(Path(config.tls_dir) if config.tls_dir else scratch / "tls", config.host)
        redis = config.redis
        if not redis:
            say("starting Valkey")
            server, redis = await valkey.start(scratch)
            self._children.append(server)
        secret = cluster_secret(config.host_kv_dir)
        say(f"starting {', '.join(config.pods)} and a router on {self._model}; logs in {logs}")
        pods = [await self._start_pod(pod, role, redis, secret, logs) for pod, role in config.pods.items()]
        router = await self._start_router(redis, secret, logs)
        answer: dict[str, Any] = {"router": {}, "prefill": [], "decode": [], "colocated": []}
        answer |= {"redis": bare(redis), "cluster": self._name}
        if self._tls is not None:
            answer["tls"] = self._tls.told()
        *said, answer["router"] = await asyncio.gather(*(self._ready(child) for child in (*pods, router)))
        for role, pod in zip(config.pods.values(), said, strict=True):
            answer[role].append(pod)
        # Of several workers each has to be linked to every pod; on the port that they share, any of them answers.
        for worker in answer["router"].get("workers", [answer["router"]]):
            await self._healthy(worker["http"])
        say(f"the router is ready on {answer['router']['http']} (HTTP) and {answer['router']['grpc']} (gRPC)")
        return answer

    async def _ready(self, child: Child) -> dict[str, Any]:
        said = await child.ready(self._config.start_timeout_s)
        say(f"{child.name} is up: {said.get('grpc')}")
        return said

    async def _start_pod(self, name: str, role: str, redis: str, secret: str, logs: Path) -> Child:
        config = self._config
        flags = [
            *("--model", str(self._model), "--host", config.host, "--pod-id", name),
            *("--threads", str(config.threads or self._threads())),
            *("--drain-s", str(config.drain_s), "--log-level", config.log_level),
            *("--log-format", config.log_format),
        ]
        flags += [*flags_of(config, left_to(PodConfig)), *self._shown(POD)]
        pod = await self._spawn(name, role, flags, redis, secret, logs)
        await priority.lower(pod.pid, POD_NICENESS)
        return pod

    def _threads(self) -> int:
        """Return the threads of each engine where nothing is asked for, 0 for the engine's own choice."""
        # On a CPU they share its cores; beside a GPU none needs more than one.
        return max(1, cores.usable() // len(self._config.pods)) if self._config.device in (None, "cpu") else 0

    async def _start_router(self, redis: str, secret: str, logs: Path) -> Child:
        config = self._config
        flags = ["--model", str(self._model), "--host", config.host, "--port", str(config.port)]
        flags += ["--grpc-port", str(config.grpc_port), "--drain-s", str(config.drain_s)]
        flags += ["--log-level", config.log_level, "--log-format", config.log_format]
        flags += [*flags_of(config, left_to(RouterConfig)), *self._shown(ROUTER)]
        return await self._spawn("router", ROUTER, flags, redis, secret, logs)

    def _shown(self, name: str) -> list[str]:
        return self._tls.flags(name) if self._tls is not None else []

    async def _spawn(self, name: str, role: str, flags: list[str], redis: str, secret: str, logs: Path) -> Child:
        # What is secret goes by the environment: a command line shows to everybody.
        environ = {**self._environ, "PAGEWIRE_CLUSTER_SECRET": secret, "PAGEWIRE_REDIS_URL": redis}
        command = [*self._program, role, "--cluster", self._name, *flags]
        child = await Child.start(name, role, command, environ, logs / f"{name}.log")
        self._children.append(child)
        return child

    async def _healthy(self, url: str) -> None:
        """Wait until the router is linked to every pod: it is healthy before that, with fewer of them.

        An answer that fails to come is no reason to give up; a process that ends is.
        """
        expected = {role: [*self._config.pods.values()].count(role) for role in ("prefill", "decode", "colocated")}
        limit_s, last, is_told = self._config.start_timeout_s, "no answer", False
        verify = self._tls.context() if self._tls is not None else True
        try:
            async with (
                asyncio.timeout(limit_s),
                httpx.AsyncClient(trust_env=False, timeout=5.0, verify=verify) as client,
            ):
                while True:
                    try:
                        answer = await client.get(f"{url}/health")
                        last = f"{answer.status_code} {answer.text}"
                        if answer.status_code == httpx.codes.OK and answer.json()["pods"] == expected:
                            return
                        if not is_told and answer.json().get("index", {}).get("state") == "away":
                            say("the router does not reach Redis, and waits for it")
                            is_told = True
                    except httpx.TransportError as error:
                        last = f"no answer ({str(error) or type(error).__name__})"
                    for child in self._children:
                        if child.exit_code is not None:
                            raise Unavailable(f"{child.name} ended with exit code {child.exit_code}\n{child.tail()}")
                    await asyncio.sleep(HEALTH_POLL_S)
        except TimeoutError:
            raise Unavailable(f"the router is not ready: {last}\n{self._router().tail()}") from None

    async def _watch(self) -> None:
        """Report each process that ends; raises Unavailable when it is the router."""
        router = self._router()
        reports = [asyncio.create_task(self._report_end(child)) for child in self._children if child is not router]
        try:
            code = await router.exited()
            raise Unavailable(f"the router ended with exit code {code}\n{router.tail()}")
        finally:
            for report in reports:
                report.cancel()

    def _router(self) -> Child:
        (router,) = (child for child in self._children if child.role == ROUTER)
        return router

    async def _report_end(self, child: Child) -> None:
        code = await child.exited()
        say(f"{child.name} ended with exit code {code}; the others go on\n{child.tail()}")

    async def _stop(self) -> None:
        self._stopping.set()
        if self._children:
            say("stopping")
        grace_s = self._config.drain_s + KILL_MARGIN_S + self._keep_s()
        for roles in STOP_ORDER:
            async with asyncio.TaskGroup() as stops:
                for child in self._children:
                    if child.role in roles:
                        stops.create_task(child.stop(grace_s))

    def _keep_s(self) -> float:
        """Return how long a pod may take to leave its KV on a disk."""
        if not self._config.host_kv_dir:
            return 0.0
        return max(KEEP_S, (self._config.kv_memory or KV_MEMORY) / KEPT_BYTES_PER_S)


def left_to(service: type) -> list[str]:
    """Return the settings that a cluster leaves to a service: those that both have, and that have no value here."""
    theirs = {each.name for each in settings(service)}
    return [each.name for each in settings(ClusterConfig) if each.default in (None, ()) and each.name in theirs]


def flags_of(config: ClusterConfig, names: Sequence[str]) -> list[str]:
    """Return flags for those settings that were given; the services' own defaults stand for the others."""
    given = {name.replace("_", "-"): value for name in names if (value := getattr(config, name)) is not None}
    parts: list[str] = []
    for flag, value in given.items():
        if isinstance(value, bool):
            parts.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            parts += (part for each in value for part in (f"--{flag}", each))
        else:
            parts += (f"--{flag}", str(value))
    return parts


@contextlib.contextmanager
def _logs(asked: str) -> Iterator[Path]:
    """A folder for what processes say: the one that is asked for, or one that goes with them unless something fails."""
    folder = Path(asked) if asked else Path(tempfile.mkdtemp(prefix="pagewire-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    stays = bool(asked)
    try:
        yield folder
    except Exception:
        if any(folder.iterdir()):
            say(f"what the processes said stays in {folder}")
            stays = True
        raise
    finally:
        if not stays:
            shutil.rmtree(folder, ignore_errors=True)
