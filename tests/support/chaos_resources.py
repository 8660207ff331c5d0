"""What processes run short of, and what is done to them on purpose: memory, disk, descriptors, Redis, an upgrade.

A full disk is a limit of file sizes: whatever is written to a log fails. Memory runs out where a process may map no
more than it has. Both by prlimit, while it runs, and lifted again.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import httpx
import psutil
from chaos_cluster import ROUTERS, ChaosCluster, end
from chaos_trial import Fault

LASTS_S = 3.0
MUCH = 6 << 20  # bytes of a body, which a router takes
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
NEWER = Path(__file__).with_name("newer_wire")  # a sitecustomize: whoever starts with it speaks one version more

# What Python cannot allocate is told by name. What gRPC's C++ cannot ends the process (std::bad_alloc), and all that a
# router has in hand with it, as where it is killed.
MAY_FAIL = {"router: no more memory": frozenset({"unavailable", "broken"})}

Strike = Callable[[ChaosCluster], Awaitable[None]]


async def _limited(processes: Sequence[psutil.Process], kind: int, most: Callable[[psutil.Process], int]) -> None:
    """Hold processes to a limit for a while."""
    before = {process: process.rlimit(kind) for process in processes}
    try:
        for process in processes:
            process.rlimit(kind, (most(process), before[process][1]))
        await asyncio.sleep(LASTS_S)
    finally:
        for process, limit in before.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(kind, limit)


def no_more_memory(who: str) -> Strike:
    """A process may map nothing more than it has."""

    async def strike(cluster: ChaosCluster) -> None:
        limited = _limited([cluster.process(who)], resource.RLIMIT_AS, lambda process: process.memory_info().vms)
        if who not in cluster.routers:
            await limited
        else:
            await asyncio.gather(limited, _ask_for_much(cluster.routers[who]["http"]))

    return strike


async def _ask_for_much(url: str) -> None:
    """Ask a router for more memory than it has to spare, so that it is known to lack some: it says so, or it ends."""
    await asyncio.sleep(LASTS_S / 3)
    body = {"prompt": "x" * MUCH, "max_tokens": 1}
    with contextlib.suppress(httpx.TransportError):
        async with httpx.AsyncClient(trust_env=False, timeout=LASTS_S) as client:
            answer = await client.post(f"{url}/v1/completions", json=body)
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, f"it had memory: {answer.text[:200]}"


def no_more_descriptors(who: str) -> Strike:
    """A process may open nothing more."""

    async def strike(cluster: ChaosCluster) -> None:
        await _limited([cluster.process(who)], resource.RLIMIT_NOFILE, lambda process: process.num_fds())

    return strike


async def full_disk(cluster: ChaosCluster) -> None:
    """No process can log, while Redis is away, of which all have something to say."""
    redis = cluster.process("redis")
    redis.suspend()
    try:
        await _limited(cluster.live.running(), resource.RLIMIT_FSIZE, lambda _: 1)
    finally:
        redis.resume()


async def flushed(cluster: ChaosCluster) -> None:
    """Redis forgets all."""
    with cluster.redis.admin() as admin:
        admin.flushall()


async def full_redis(cluster: ChaosCluster) -> None:
    """Redis takes nothing more."""
    with cluster.redis.admin() as admin:
        admin.config_set("maxmemory", 1)
        admin.config_set("maxmemory-policy", "noeviction")
        await asyncio.sleep(LASTS_S)
        admin.config_set("maxmemory", 0)


def rolled(*, newer: bool) -> Strike:
    """Each pod and router is ended and comes back as another build, one after the other."""

    async def strike(cluster: ChaosCluster) -> None:
        cluster.environ = {"PYTHONPATH": f"{NEWER}:{cluster.source}"} if newer else {}
        for name in [*cluster.pods, *ROUTERS]:
            before = cluster.num_restarts
            end(cluster.process(name), signal.SIGTERM)
            while cluster.num_restarts == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await cluster.until_whole()

    return strike


def faults() -> list[Fault]:
    """Return them all."""
    strikes: dict[str, Strike] = {
        "decode engine: no more memory": no_more_memory("decode-0 engine"),
        "prefill engine: no more memory": no_more_memory("prefill-0 engine"),
        "decode front: no more memory": no_more_memory("decode-0"),
        "router: no more memory": no_more_memory("a"),
        "router: no more descriptors": no_more_descriptors("a"),
        "decode front: no more descriptors": no_more_descriptors("decode-0"),
        "disk of all logs full, Redis stopped": full_disk,
        "Redis flushed": flushed,
        "Redis full": full_redis,
        "all replaced by the next wire version": rolled(newer=True),
        "all replaced by this wire version again": rolled(newer=False),
    }
    return [
        Fault(
            name=name, kind="resource", strike=strike, recovers_s=60.0, lasts_most_s=300.0,
            may_fail=MAY_FAIL.get(name, frozenset()),
        )
        for name, strike in strikes.items()
    ]  # fmt: skip
