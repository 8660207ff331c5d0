"""A cluster to be broken: Redis, two routers, 2P2D, and a supervisor that starts anew what died, under its old name.

All are processes of `pagewire`, as `up` starts them. The router of `up` itself gets no requests: it is asked what there
is. Router `a` is one process, router `b` two workers. Knows nothing of what is done to them. Invariant: what `is_whole`
is again what was started, whatever happened meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from free_ports import free_port
from live_cluster import LiveCluster
from lives import is_alive
from patience import comes_true_later
from redis_rig import VALKEY, Server, server
from slow_proxy import SlowProxy, slow_proxy

FLAGS = (
    *("--prefill", "2", "--decode", "2", "--dtype", "float32", "--kv-memory", "8MiB", "--chunk-size", "64"),
    *("--prefill-mode", "remote", "--threads", "1", "--drain-s", "0.2"),
)
STALL_S = 2.0  # an engine that stands still for longer is given up by its pod
ROUTERS = {"a": ("--drain-s", "10"), "b": ("--drain-s", "10", "--workers", "2")}
WIRED_PODS = ("prefill-0", "decode-0")
DOWN_S = 1.0  # until a supervisor starts what died
WHOLE_S = 60.0

Pod = dict[str, Any]


class ChaosCluster:
    """The processes by name: pods `prefill-0` to `decode-1`, routers, and `redis`."""

    def __init__(self, live: LiveCluster, redis: Server, wires: dict[str, SlowProxy]) -> None:
        self.live = live
        self.redis = redis
        self.pods: dict[str, Pod] = {pod["id"]: pod for pod in live.pods()}
        self.routers: dict[str, Pod] = {}
        self.wires = wires
        self.how: dict[str, tuple[str, ...]] = {}  # flags beside the usual ones, by name
        self.doors: dict[str, str] = {}  # where callers are to dial a router, if not at its own address
        self.before: dict[str, tuple[str, ...]] = {}  # what stands before its command
        self.environ: dict[str, str] = {}  # of whatever is started from now on
        self.num_restarts = 0
        self.lacks: list[str] = []  # what kept it from being whole when that was asked last
        self.unstarted: dict[str, str] = {}  # what the supervisor tried to start and could not, and why
        self._died_s: dict[str, float] = {}

    @property
    def source(self) -> str:
        """Where processes find the package, beside what is installed."""
        return str(Path(__file__).parents[2] / "src")

    @property
    def urls(self) -> list[str]:
        """Where callers may ask."""
        return [self.doors.get(name, str(router["http"])) for name, router in self.routers.items()]

    def process(self, who: str) -> psutil.Process:
        """Return a process by what it is: a name, or `NAME engine`, `NAME worker`."""
        name, _, part = who.partition(" ")
        if name == "redis":
            assert self.redis.process is not None
            return psutil.Process(self.redis.process.pid)
        main = self.live.process_of((self.pods | self.routers)[name])
        if not part:
            return main
        return main.children(recursive=part == "engine")[0]

    async def put_wire_before_pod(self, name: str, ends: contextlib.AsyncExitStack) -> None:
        """Start a pod anew, as one that all its peers dial over a wire."""
        port = free_port()
        self.wires[name] = await ends.enter_async_context(slow_proxy(port))
        self.how[name] = ("--port", str(port), "--advertise", f"127.0.0.1:{self.wires[name].port}")
        self.live.kill(self.pods[name])
        await asyncio.to_thread(self.start, name)

    async def put_wire_before_router(self, name: str, ends: contextlib.AsyncExitStack) -> None:
        """Have callers ask a router over a wire; where it is started anew, it is on the same port."""
        port = self.routers[name]["http"].rpartition(":")[2]
        self.how[name] = ("--port", port)
        self.wires[name] = await ends.enter_async_context(slow_proxy(int(port)))
        self.doors[name] = f"http://127.0.0.1:{self.wires[name].port}"

    @contextlib.asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Start anew whatever is dead for `DOWN_S`, while the context lasts."""
        supervisor = asyncio.create_task(self._supervise())
        try:
            yield
        finally:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)

    async def _supervise(self) -> None:
        while True:
            now_s = time.monotonic()
            for name in [*self.pods, *self.routers, "redis"]:
                if self._is_alive(name):
                    self._died_s.pop(name, None)
                elif now_s - self._died_s.setdefault(name, now_s) >= DOWN_S:
                    try:
                        await asyncio.to_thread(self.start, name)
                    except AssertionError as error:  # it did not come up, and is tried again
                        self.unstarted[name] = str(error)
                    else:
                        self.unstarted.pop(name, None)
                        self.num_restarts += 1
            await asyncio.sleep(0.05)

    def start(self, name: str) -> None:
        """Start a pod, a router or Redis that is not there; returns when it says that it is up."""
        more, environ = self.how.get(name, ()), self.environ
        if name == "redis":
            self.redis.start()
        elif name in ROUTERS:
            self.routers[name] = self.live.join_router(name, *ROUTERS[name], *more, **environ)
        else:
            self.pods[name] = self.live.join(
                name.split("-")[0], *more, name=name, before=self.before.get(name, ()), **environ
            )

    def _is_alive(self, name: str) -> bool:
        if name == "redis":
            return self.redis.process is not None and self.redis.process.poll() is None
        return is_alive(self.live.process_of((self.pods | self.routers)[name]))

    async def is_whole(self) -> bool:
        """Return whether all live, and every router would place requests on every pod."""
        dead = [name for name in [*self.pods, *self.routers, "redis"] if not self._is_alive(name)]
        self.lacks = [f"{name} is dead {self.unstarted.get(name, '')}" for name in dead]
        if self.lacks:
            return False
        urls = [self.live.http]
        for router in self.routers.values():
            urls += [worker["http"] for worker in router.get("workers", [router])]
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            for url in urls:
                try:
                    answer = await client.get(f"{url}/health")
                    said = answer.json() if answer.status_code == httpx.codes.OK else {}
                except httpx.TransportError as error:
                    said = {"error": repr(error)}
                # One that was slow beside the others may be kept out until a request tries it; it is there.
                if sum(said.get("pods", {}).values()) + len(said.get("ejected", ())) != len(self.pods):
                    self.lacks = [f"{url} says {said}"]
                    return False
        return True

    async def until_whole(self) -> None:
        """Wait for `is_whole`."""
        if not await comes_true_later(self.is_whole, within_s=WHOLE_S):
            raise AssertionError(f"not whole again: {self.lacks}")

    async def leaked(self) -> dict[str, float]:
        """Return what pods at rest hold for nobody, by pod and gauge; waits a while for what ends within seconds."""
        try:
            while True:
                with contextlib.suppress(httpx.TransportError):  # one that was ended is about to be gone
                    await asyncio.to_thread(self.live.assert_at_rest)
                    break
                await asyncio.sleep(0.1)
            return {}
        except AssertionError:
            held = (
                "kv_blocks_held",
                "kv_blocks_reserved",
                "kv_blocks_orphaned",
                "kv_blocks_quarantined",
                "leases_held",
            )
            states = {pod["id"]: self.live.metrics(pod) for pod in self.live.alive()}
            return {f"{pod} {name}": said[name] for pod, said in states.items() for name in held if said[name]}


@contextlib.asynccontextmanager
async def chaos_cluster(model: Path, folder: Path, *flags: str, wired: bool = False) -> AsyncIterator[ChaosCluster]:
    """Run one, supervised; it must end as any other does, with nothing left behind.

    Where it is wired, callers and routers, a pod of each role and its peers, and everybody and Redis meet over proxies.
    """
    async with contextlib.AsyncExitStack() as ends:
        redis = ends.enter_context(server(VALKEY, folder / "redis"))
        wires: dict[str, SlowProxy] = {}
        redis_url = redis.url
        if wired:
            wires["redis"] = await ends.enter_async_context(slow_proxy(redis.port))
            redis_url = f"redis://127.0.0.1:{wires['redis'].port}"
        environ = {"PAGEWIRE_ENGINE_STALL_S": str(STALL_S)}
        live = await asyncio.to_thread(LiveCluster, model, *FLAGS, "--redis", redis_url, *flags, **environ)
        cluster = ChaosCluster(live, redis, wires)
        try:
            if wired:
                for name in WIRED_PODS:
                    await cluster.put_wire_before_pod(name, ends)
            for name in ROUTERS:
                await asyncio.to_thread(cluster.start, name)
            if wired:
                for name in ROUTERS:
                    await cluster.put_wire_before_router(name, ends)
            await cluster.until_whole()
            async with cluster.supervised():
                yield cluster
        finally:
            code = await asyncio.to_thread(live.stop)
        assert code == 0


def end(process: psutil.Process, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
