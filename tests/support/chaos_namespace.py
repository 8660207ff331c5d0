"""One prefill pod in a network namespace of its own, and what a kernel does to its packets: dropped, slow.

Needs root and `ip`, `iptables` and `tc`; `missing()` says what of that is not to be had. The namespace and this one
are joined by a veth pair with addresses of 10.213.x.0/30. Late packets need a kernel module that few machines have: for
them there is `chaos_network.py`. Invariant: when the context ends, namespace, pair and rules are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos_cluster import FLAGS, ROUTERS, STALL_S, ChaosCluster
from chaos_trial import Fault
from live_cluster import LiveCluster
from redis_rig import VALKEY, Server, server

LASTS_S = 3.0
GIVEN_UP_S = 13.0
COMMAND_S = 30.0
PROGRAMS = ("ip", "iptables", "tc")
POD = "prefill-0"
NAMES = tuple(
    f"prefill pod in a namespace: {what}"
    for what in (
        "what it is sent is lost for 3 s", "what it sends is lost for 3 s", "what it sends is lost for 13 s",
        "it sends at 2 Mbit/s", "its interface is down for 3 s",
    )
)  # fmt: skip


def missing() -> str:
    """Return what keeps network namespaces from being used here, "" where nothing does."""
    if os.geteuid() != 0:
        return "not root"
    if gone := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"no {', '.join(gone)}"
    try:
        with namespace() as inner:
            inner.run("iptables", "-L")
    except subprocess.CalledProcessError as error:
        return f"{' '.join(map(str, error.cmd))}: {error.stderr.strip()}"
    return ""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Its name, our address and its own."""

    name: str
    ours: str
    its: str

    @property
    def before(self) -> tuple[str, ...]:
        """What stands before a command that is to run in it."""
        return ("ip", "netns", "exec", self.name)

    def run(self, *command: str) -> None:
        """Run a command in it. Raises CalledProcessError."""
        _run(*self.before, *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_S)


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """Make one, joined to ours. Raises CalledProcessError where that is not allowed."""
    number = random.randrange(1, 64 * 255)
    name, net = f"pagewire-{number}", f"10.213.{number // 64}.{number % 64 * 4}"
    base, last = net.rsplit(".", 1)
    inner = Namespace(name, f"{base}.{int(last) + 1}", f"{base}.{int(last) + 2}")
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", f"pw{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "address", "add", f"{inner.ours}/30", "dev", f"pw{number}")
        _run("ip", "link", "set", f"pw{number}", "up")
        inner.run("ip", "address", "add", f"{inner.its}/30", "dev", "eth0")
        inner.run("ip", "link", "set", "eth0", "up")
        inner.run("ip", "link", "set", "lo", "up")
        yield inner
    finally:
        _run("ip", "netns", "delete", name)  # and the pair with it


class PartedCluster(ChaosCluster):
    """One of which a pod is in `inner`."""

    def __init__(self, live: LiveCluster, redis: Server, inner: Namespace) -> None:
        super().__init__(live, redis, {})
        self.inner = inner


@contextlib.asynccontextmanager
async def parted_cluster(model: Path, folder: Path) -> AsyncIterator[PartedCluster]:
    """Run a cluster whose `prefill-0` lives in a namespace of its own; all listen on the pair's addresses."""
    with (
        namespace() as inner,
        server(VALKEY, folder / "redis", f"bind 127.0.0.1 {inner.ours}", "protected-mode no") as r,
    ):
        flags = ("--host", inner.ours, "--redis", f"redis://{inner.ours}:{r.port}", "--transports", "grpc")
        live = await asyncio.to_thread(LiveCluster, model, *FLAGS, *flags, PAGEWIRE_ENGINE_STALL_S=str(STALL_S))
        cluster = PartedCluster(live, r, inner)
        try:
            cluster.how[POD] = ("--host", inner.its)
            cluster.before[POD] = inner.before
            live.kill(cluster.pods[POD])
            for name in (POD, *ROUTERS):
                await asyncio.to_thread(cluster.start, name)
            await cluster.until_whole()
            async with cluster.supervised():
                yield cluster
        finally:
            code = await asyncio.to_thread(live.stop)
        assert code == 0


def _while(begin: tuple[str, ...], end: tuple[str, ...], lasts_s: float) -> Callable[[ChaosCluster], Awaitable[None]]:
    async def strike(cluster: ChaosCluster) -> None:
        assert isinstance(cluster, PartedCluster)
        cluster.inner.run(*begin)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            cluster.inner.run(*end)

    return strike


def faults() -> list[Fault]:
    """Return them all: they strike a `PartedCluster`."""

    def dropped(chain: str, lasts_s: float) -> Callable[[ChaosCluster], Awaitable[None]]:
        rule = (chain, "-i" if chain == "INPUT" else "-o", "eth0", "-j", "DROP")
        return _while(("iptables", "-I", *rule), ("iptables", "-D", *rule), lasts_s)

    slow = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "2mbit", "burst", "16kb", "latency", "400ms")
    down = ("ip", "link", "set", "eth0", "down"), ("ip", "link", "set", "eth0", "up")
    strikes = (
        dropped("INPUT", LASTS_S),
        dropped("OUTPUT", LASTS_S),
        dropped("OUTPUT", GIVEN_UP_S),
        _while(slow, ("tc", "qdisc", "del", "dev", "eth0", "root"), LASTS_S),
        _while(*down, LASTS_S),
    )
    return [
        Fault(name=name, kind="namespace", strike=strike, recovers_s=30.0)
        for name, strike in zip(NAMES, strikes, strict=True)
    ]
