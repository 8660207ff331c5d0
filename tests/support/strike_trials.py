"""A request held in a state of its life while an engine alone, a router or Redis is struck: what must be true then.

Routers and Redis are processes of their own here, so that they can be replaced as a supervisor would. Who is killed is
gone, who is ended may finish, who is stopped stands still for `STOPPED_S` while all others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
from kill_states import Pod, Scene, State, hold, submitted, until
from kill_trials import MAX_TOKENS, STATES, STOPPED_S, Question, assert_well, complete_the_set, start, victim
from live_cluster import LiveCluster
from live_stream import streaming
from redis_rig import VALKEY, Server, server

DOWN_S = 0.5  # until Redis is started anew: what is under way goes on without it
BEFORE_PODS: dict[str, State] = {"submitted": submitted}  # nobody knows whose it will be
HANDOVERS = ("handed over", "fetching")

TRIALS = [
    (who, how, state)
    for who, hows in {
        "source engine": ("killed", "stopped"),
        "taker engine": ("killed", "stopped"),
        "router": ("killed", "ended", "stopped"),
        "Redis": ("killed", "ended", "stopped"),
    }.items()
    for how in hows
    for state in (STATES if who.endswith("engine") else BEFORE_PODS | STATES)
    if not (who == "source engine" and state in ("resumable", "decoding"))
]


class Rig:
    """1P2D, and the router and the Redis that it has now."""

    def __init__(self, live: LiveCluster, redis: Server) -> None:
        self.live = live
        self.redis = redis
        self._num_routers = 0
        self.router = self._another_router()

    def _another_router(self) -> Pod:
        self._num_routers += 1
        # One that ends has no other to hand requests to, as pods have: it is given the time to see them out.
        router = self.live.join_router(f"router-{self._num_routers}", "--drain-s", "60")
        self.live.http = router["http"]  # who asks, asks it
        return router

    def process(self, scene: Scene, state: str, who: str) -> psutil.Process:
        """Return who is to be struck; engines are those of the pod that ships and of the one that takes."""
        if who == "router":
            return psutil.Process(self.router["pid"])
        if who == "Redis":
            assert self.redis.process is not None
            return psutil.Process(self.redis.process.pid)
        return self.live.engine_of(victim(scene, state, who.split()[0]))

    async def recover(self, who: str, how: str) -> None:
        """Start anew what is gone, as a supervisor does."""
        if how == "stopped":
            return
        if who == "Redis":
            assert self.redis.process is not None
            await asyncio.to_thread(self.redis.process.wait)
            await asyncio.sleep(DOWN_S)
            await asyncio.to_thread(self.redis.start)
        elif who == "router":
            if how == "ended":
                assert await asyncio.to_thread(self.live.exit_code, self.router) == 0
            self.router = self._another_router()  # not by a thread of this loop's: it would end with that


@contextlib.contextmanager
def rig(model: Path, folder: Path) -> Iterator[Rig]:
    """Run one; nothing may be left behind."""
    with server(VALKEY, folder) as redis:
        live = start(model, "shm", "--redis", redis.url)
        try:
            yield Rig(live, redis)
        finally:
            code = live.stop()
        assert code == 0


async def _kill(scene: Scene, process: psutil.Process) -> None:
    process.kill()


async def _end(scene: Scene, process: psutil.Process) -> None:
    process.terminate()


async def _stop(scene: Scene, process: psutil.Process) -> None:
    scene.resume()
    scene.stop(process)
    await asyncio.sleep(STOPPED_S)


STRIKES: dict[str, Callable[[Scene, psutil.Process], Awaitable[None]]] = {
    "killed": _kill, "ended": _end, "stopped": _stop
}  # fmt: skip


async def strike(rig: Rig, question: Question, who: str, how: str, state: str) -> None:
    """Hold a request in a state, strike somebody, and see that all comes right."""
    tokens, right = question
    live, salt = rig.live, f"{who} {how}, {state}"
    is_taker_lost = (who, how) == ("taker engine", "killed")
    await complete_the_set(live, 1, 3 if is_taker_lost and state in HANDOVERS else 2)
    async with streaming(live, tokens, MAX_TOKENS, salt) as begin:
        scene = await hold(live, (BEFORE_PODS | STATES)[state], begin)
        try:
            process = rig.process(scene, state, who)
            pod = victim(scene, state, who.split()[0]) if who.endswith("engine") else None
            await STRIKES[how](scene, process)
        finally:
            scene.resume()
        recovery = asyncio.create_task(rig.recover(who, how))
        stream = scene.stream
        try:
            if state != "fencing":
                await stream.end()
        finally:
            await recovery
    if state == "fencing":  # whoever asked is gone
        assert stream.tokens == right[: len(stream.tokens)]
    elif (who, how) == ("router", "killed") and stream.error:  # all of it may have been said by then
        assert (stream.error, stream.tokens) == ({"code": "broken"}, right[: len(stream.tokens)])
    else:
        assert (stream.error, stream.tokens, stream.finish_reason) == ({}, right, "length")
    if pod is not None and how == "killed":
        await until(lambda: pod not in live.alive(), "the end of a pod without its engine")
    if state in HANDOVERS and (who, how) != ("source engine", "killed"):
        assert await asyncio.to_thread(live.exit_code, scene.d) == 0  # it was draining
    await complete_the_set(live)
    await assert_well(live, question, salt)
