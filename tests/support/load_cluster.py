"""A cluster under load: real processes by name, what the pods have counted, and what everybody holds at rest.

Knows nothing of the load. Invariant: what is at rest holds no block for anybody, no lease and no caller's connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis
from live_cluster import LiveCluster
from patience import comes_true_later
from process_watch import descriptors_of, memory_of, threads_of
from prometheus_client.parser import text_string_to_metric_families

FLAGS = ("--prefill", "1", "--decode", "1", "--dtype", "float32", "--threads", "1", "--drain-s", "0.5")
REST_S = 20.0
COUNTED = (
    "prompt_tokens_computed_total", "prompt_tokens_cached_total", "generation_tokens_total", "preemptions_total",
    "kv_blocks_evicted_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left when nobody asks: by process, and the keys in Redis."""

    descriptors: dict[str, int]
    threads: dict[str, int]
    own_kib: dict[str, float]
    keys: int


class LoadCluster:
    """The processes of `pagewire up`, and of pods that join."""

    def __init__(self, live: LiveCluster) -> None:
        self.live = live
        self._redis = redis.Redis.from_url(live.said["redis"])
        up = psutil.Process(live.process.pid)
        (self.router,) = (child for child in up.children() if "router" in child.cmdline())

    @property
    def url(self) -> str:
        """Where callers ask."""
        return self.live.http

    @property
    def processes(self) -> dict[str, psutil.Process]:
        """All that live, by what they are."""
        found = {"router": self.router}
        for pod in self.live.alive():
            found |= {f"{pod['id']} front": psutil.Process(pod["pid"]), f"{pod['id']} engine": self.live.engine_of(pod)}
        return found

    async def counts(self) -> dict[str, float]:
        """Return what all pods together have computed so far, by counter."""
        said = [await asyncio.to_thread(self.live.metrics, pod) for pod in self.live.alive()]
        return {name: sum(each[name] for each in said) for name in COUNTED}

    async def loads(self, pod: dict[str, Any]) -> dict[str, float]:
        """Return a pod's metrics."""
        return await asyncio.to_thread(self.live.metrics, pod)

    async def num_blocks(self) -> int:
        """Return how many blocks all pools have."""
        return int(sum([(await self.loads(pod))["kv_blocks_total"] for pod in self.live.alive()]))

    async def rest(self, at_most: dict[str, int] | None = None) -> Rest:
        """Return what is held at rest, waiting until nothing is held for anybody; raises AssertionError if that fails.

        With `at_most` it also waits, though not for ever, until no process has more descriptors than that.
        """
        await asyncio.to_thread(self.live.assert_at_rest)
        assert await comes_true_later(self._is_left_alone, within_s=REST_S), (
            "the router runs requests that nobody asked"
        )
        if at_most is not None:

            async def are_few() -> bool:
                return all(many <= at_most.get(name, many) for name, many in descriptors_of(self.processes).items())

            await comes_true_later(are_few, within_s=REST_S)
        processes = self.processes
        return Rest(
            descriptors=descriptors_of(processes),
            threads=threads_of(processes),
            own_kib={name: own for name, (own, _) in memory_of(processes).items()},
            keys=self._redis.dbsize(),
        )

    async def told(self, name: str, label: str) -> dict[str, float]:
        """Return a counter of the router by one of its labels; nothing where nothing was counted."""
        text = (await asyncio.to_thread(httpx.get, f"{self.url}/metrics", trust_env=False, timeout=30)).text
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {each.labels[label]: each.value for each in samples if each.name == f"pagewire_{name}"}

    async def _is_left_alone(self) -> bool:
        said = await asyncio.to_thread(self.live.router_metrics)
        return said["router_requests_active"] == 0 and said["router_requests_waiting"] == 0


@contextlib.asynccontextmanager
async def load_cluster(model: Path, *flags: str, **environ: str) -> AsyncIterator[LoadCluster]:
    """Run one with these settings of `up`, and of all others by their variables; it must leave nothing behind."""
    live = await asyncio.to_thread(LiveCluster, model, *FLAGS, *flags, **environ)
    try:
        yield LoadCluster(live)
    finally:
        code = await asyncio.to_thread(live.stop)
    assert code == 0
