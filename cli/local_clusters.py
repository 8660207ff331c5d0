"""Clusters of a sweep on this machine: each is a `pagewire up` of its own, told everything by flags.

Invariant: when a cluster is left, nothing of it runs; and while anything of it runs, the sweep's lock is held, even
where the sweep itself was killed.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from pagewire.cli.child import Child
from pagewire.cli.cluster import flags_of
from pagewire.cli.cluster_config import ClusterConfig
from pagewire.core.config import ENVIRONMENT_PREFIX, ConfigError, load, settings
from pagewire.core.errors import Unavailable
from pagewire.core.local_models import MODELS_DIR_VARIABLE
from pagewire.serving.scrape import counters, risen
from pagewire.slo.load.run import Run, RunPlan, Server, run
from pagewire.slo.sweeps.configuration import PODS, Configuration
from pagewire.slo.sweeps.sweep import Cluster
from pagewire.slo.workloads.workload import Workload

START_MARGIN_S = 60.0
STOP_MARGIN_S = 30.0
METRICS_TIMEOUT_S = 30.0
OURS = ("port", "grpc_port", "log_dir")  # settings that a sweep chooses itself
NOT_SPOKEN = ("tls", "tls_dir", "api_keys")  # it asks in the clear, as nobody


class LocalClusters:
    """Starts them; `lock` is a descriptor that each keeps open for as long as it runs."""

    def __init__(self, environ: Mapping[str, str], lock: int) -> None:
        # What is not told by a flag is told by nobody, or one could not say what was measured.
        kept = (MODELS_DIR_VARIABLE,)
        self._environ = {
            name: value for name, value in environ.items() if name in kept or not name.startswith(ENVIRONMENT_PREFIX)
        }
        self._lock = lock

    def started(self, configuration: Configuration, logs: Path) -> AbstractAsyncContextManager[Cluster]:
        """Return a cluster to be entered; entering raises Unavailable where it does not start."""
        return self._started(configuration, logs)

    @asynccontextmanager
    async def _started(self, configuration: Configuration, logs: Path) -> AsyncIterator[Cluster]:
        told, secrets, config = cluster_flags(configuration)
        command = [sys.executable, "-P", "-m", "pagewire.cli.main", "up", *told, "--port", "0", "--grpc-port", "0"]
        command += ["--log-dir", str(logs)]
        environ = {**self._environ, **secrets}
        child = await Child.start("up", "cluster", command, environ, logs / "up.log", keeping=(self._lock,))
        try:
            said = await child.ready(config.start_timeout_s + START_MARGIN_S)
            yield _LocalCluster(child, said)
        finally:
            await child.stop(config.drain_s + STOP_MARGIN_S)


class _LocalCluster:
    """One that runs; `said` is its JSON line."""

    def __init__(self, child: Child, said: Mapping[str, Any]) -> None:
        self._child = child
        self._server = Server(url=said["router"]["http"])
        pods = [pod for role in ("prefill", "decode", "colocated") for pod in said[role]]
        self._pods = {pod["id"]: pod["pid"] for pod in pods}
        self._metrics = {pod["id"]: pod["metrics"] for pod in pods}

    async def run(self, workload: Workload, plan: RunPlan) -> Run:
        """Play it; raises Unavailable where the cluster, or one of its pods, did not live to its end."""
        try:
            before = await self._counters()
            done = await run(workload, self._server, plan)
            after = await self._counters()
        except httpx.TransportError as error:
            raise Unavailable(f"a pod does not show its metrics ({error!r})\n{self._child.tail()}") from error
        if self._child.exit_code is not None:
            raise Unavailable(f"the cluster ended with exit code {self._child.exit_code}\n{self._child.tail()}")
        if lost := [pod for pod, pid in self._pods.items() if not _lives(pid)]:
            raise Unavailable(f"{', '.join(lost)} ended while it was measured\n{self._child.tail()}")
        return dataclasses.replace(done, counters={pod: risen(before[pod], after[pod]) for pod in self._pods})

    async def _counters(self) -> dict[str, dict[str, float]]:
        async with httpx.AsyncClient(trust_env=False, timeout=METRICS_TIMEOUT_S) as client:
            return {pod: counters((await client.get(url)).text) for pod, url in self._metrics.items()}


def cluster_flags(configuration: Configuration) -> tuple[list[str], dict[str, str], ClusterConfig]:
    """Return the flags of `pagewire up`, the variables of what no command line should show, and what both say.

    Raises ConfigError, which names the configuration.
    """
    told: dict[str, object] = {name: text for name, text in configuration.settings.items() if name != PODS}
    told |= configuration.pods
    try:
        if chosen := [name for name in OURS if name in told]:
            raise ConfigError(f"{chosen[0]} is chosen by the sweep")
        if foreign := [name for name in NOT_SPOKEN if name in told]:
            raise ConfigError(f"{foreign[0]}: a sweep asks its clusters in the clear and without a key")
        config = load(ClusterConfig, environ={}, flags=told).value
    except ConfigError as error:
        raise ConfigError(f"{configuration.name}: {error}") from error
    secret = {each.name for each in settings(ClusterConfig) if each.is_secret}
    variables = {f"{ENVIRONMENT_PREFIX}{name.upper()}": str(getattr(config, name)) for name in secret & told.keys()}
    return flags_of(config, [name for name in told if name not in secret]), variables, config


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
