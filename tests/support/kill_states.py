"""Brings a request on a live cluster into one state of its shipment, and holds it there by stopping processes.

One prefill pod and two decode pods, or two and one, `tiny_model`. A stopped process computes and answers nothing;
`walk` lets some run for moments only, until the metrics of pods say that the state has come. Nothing is faked: what
is held is as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
from live_cluster import LiveCluster
from live_stream import Stream
from patience import comes_true

WAIT_S = 60.0
MOMENT_S = 0.002  # a step of the tiny model takes about as long
MOMENTS_GROW = 1.02  # where a busy machine gives a process none of its moment
MOST_MOMENT_S = 0.02
MAX_TRIES = 20
BLOCK = 16
SUBMITTED_S = 0.1  # until a request that is in has gone to a pod
MOST_LANDED = 10  # blocks of 20, where the rest is still to be computed
SETTLED_S = 0.05  # nothing new for so long, and who runs rests: it has said all that it heard of who is stopped

Pod = dict[str, Any]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return once `condition()` holds. It is looked at again and again: other processes tell nobody of a change."""
    assert await comes_true(condition, within_s=WAIT_S, every_s=0.005), f"never: {what}"


class TooFast(Exception):
    """A process was let run for a moment, and has run past the state: try again."""


class Scene:
    """A request, the pods that it is on, and the processes that are stopped until `resume`."""

    def __init__(self, cluster: LiveCluster, begin: Callable[[], Stream]) -> None:
        self.cluster = cluster
        self.prefill = [pod for pod in cluster.alive() if pod["role"] == "prefill"]
        self.p = self.prefill[0]  # the prefill pod that has the request; where there are two, a state finds it
        self.decode = [pod for pod in cluster.alive() if pod["role"] == "decode"]
        self.d: Pod = {}  # the decode pod that has the request
        self.stopped: list[psutil.Process] = []
        self._begin = begin
        self._before = self._counters()
        self._stream: Stream | None = None

    @property
    def stream(self) -> Stream:
        """What the client hears."""
        assert self._stream is not None
        return self._stream

    def _counters(self) -> dict[str, dict[str, float]]:
        return {pod["id"]: self.cluster.metrics(pod) for pod in self.decode}

    def begin(self) -> None:
        """Have the client ask."""
        self._stream = self._begin()

    async def ask(self) -> None:
        """Begin; returns when a decode pod has the request."""
        self._before = self._counters()
        self.begin()

        def has_it() -> bool:
            for pod in self.decode:
                if self.counter(pod, "requests_submitted_total") > self._before[pod["id"]]["requests_submitted_total"]:
                    self.d = pod
            return bool(self.d)

        await until(has_it, "a decode pod with the request")

    def stop(self, process: psutil.Process) -> None:
        """Stop a process until `resume`."""
        process.suspend()
        if process not in self.stopped:
            self.stopped.append(process)

    def resume(self) -> None:
        """Let everybody run who still lives."""
        for process in self.stopped:
            with contextlib.suppress(psutil.NoSuchProcess):  # one that was killed is gone at any moment
                process.resume()
        self.stopped.clear()

    def let_go(self, process: psutil.Process) -> None:
        """Let a stopped process run again."""
        process.resume()
        self.stopped.remove(process)

    def resume_next(self) -> None:
        """Let the other decode pods run: one of them gets the request."""
        for process in [process for process in self.stopped if process.pid in {pod["pid"] for pod in self.decode}]:
            self.let_go(process)

    def front(self, pod: Pod) -> psutil.Process:
        """The process that speaks for a pod."""
        return self.cluster.process_of(pod)

    def counter(self, pod: Pod, name: str) -> float:
        """One of a pod's metrics."""
        return self.cluster.metrics(pod)[name]

    @property
    def next(self) -> Pod:
        """A decode pod that does not have the request, and may get it."""
        return next(pod for pod in self.decode if pod is not self.d)

    @property
    def num_placed(self) -> float:
        """Blocks of this request that are in place at its decode pod: more came, perhaps, and has no block yet."""
        return self.counter(self.d, "kv_blocks_placed_total") - self._before[self.d["id"]]["kv_blocks_placed_total"]

    @property
    def num_lost(self) -> float:
        """Shipments to the request's decode pod that were lost, whyever."""
        state = self.cluster.metrics(self.d)
        return sum(value for name, value in state.items() if name.startswith("shipments_lost_"))

    async def walk(self, condition: Callable[[], bool], what: str, *stopped: psutil.Process) -> None:
        """Let stopped processes run in moments until `condition()` holds; they are stopped then."""
        moment_s = MOMENT_S
        async with asyncio.timeout(WAIT_S):
            while not condition():
                if self._stream is not None and self._stream.is_over:
                    raise TooFast(f"over before {what}: {self._stream.error}")
                for process in stopped:
                    process.resume()
                await asyncio.sleep(moment_s)
                for process in stopped:
                    process.suspend()
                await asyncio.sleep(MOMENT_S)
                moment_s = min(MOST_MOMENT_S, moment_s * MOMENTS_GROW)


State = Callable[[Scene], Awaitable[None]]


async def hold(cluster: LiveCluster, state: State, begin: Callable[[], Stream]) -> Scene:
    """Return a request that is held in a state. `begin` is called anew, for a request of its own, until one is."""
    for _ in range(MAX_TRIES):
        scene = Scene(cluster, begin)
        try:
            await state(scene)
            return scene
        except TooFast:
            scene.resume()
            await scene.stream.end()
        except BaseException:
            scene.resume()
            raise
    raise AssertionError(f"never held in time: {state}")


async def submitted(scene: Scene) -> None:
    """The router gave it to a decode pod, which does not answer."""
    for pod in scene.decode:
        scene.stop(scene.front(pod))
    scene.begin()
    await until(lambda: scene.cluster.router_metrics()["router_requests_active"] > 0, "a request in the router")
    await asyncio.sleep(SUBMITTED_S)


async def reserved(scene: Scene) -> None:
    """The prefill pod was asked and has not answered."""
    scene.stop(scene.front(scene.p))
    await scene.ask()
    await until(lambda: scene.counter(scene.d, "kv_blocks_reserved") > 0, "a reservation")


async def shipping(scene: Scene) -> None:
    """Some blocks are here, others not even computed."""
    engine = scene.cluster.engine_of(scene.p)
    scene.stop(engine)
    await scene.ask()
    await scene.walk(lambda: scene.num_placed > 0, "the first blocks", engine)
    await _rest_is_missing(scene)


async def _rest_is_missing(scene: Scene) -> None:
    """The prefill pod's engine is stopped, its other processes run: not much has come, however late it is told of.

    Much may have: as where the first blocks wait for a stream to open, or the machine is busy with others.
    """
    num_placed = -1.0
    while num_placed != scene.num_placed:
        num_placed = scene.num_placed
        await asyncio.sleep(SETTLED_S)
        await _all_is_told(scene)
    if num_placed > MOST_LANDED:
        raise TooFast("too much of it is here")
    if scene.counter(scene.p, "num_requests_running") == 0:
        raise TooFast("the prompt is done")


async def _all_is_told(scene: Scene) -> None:
    """Both pods have heard all that a stopped engine said: neither would go on if it had a core."""
    fronts = [scene.front(pod) for pod in (scene.p, scene.d)]
    await until(lambda: all(front.status() != psutil.STATUS_RUNNING for front in fronts), "pods that rest")


async def shipping_beside_others(scene: Scene, begin_others: Callable[[], Awaitable[None]], num_others: int) -> None:
    """Some blocks are here, one of two prefill pods has the rest to compute; here, others are in the midst of decoding.

    Once they are, the decode pod's engine runs for moments only, and stands still at last: however slow the machine,
    they are in the midst of it also when the shipment is lost and times are compared.
    """
    (pod,) = scene.decode
    here, engines = scene.cluster.engine_of(pod), {pod["id"]: scene.cluster.engine_of(pod) for pod in scene.prefill}
    await begin_others()
    await until(lambda: scene.counter(pod, "num_requests_running") >= num_others, "others that decode")
    scene.stop(here)
    for engine in engines.values():
        scene.stop(engine)
    await scene.ask()

    def is_asked() -> bool:
        asked = [pod for pod in scene.prefill if scene.counter(pod, "leases_held") > 0]
        scene.p = asked[0] if asked else scene.p
        return bool(asked)

    await scene.walk(is_asked, "a prefill pod with the prompt", here)
    engine = engines.pop(scene.p["id"])
    for other in engines.values():
        scene.let_go(other)
    await scene.walk(lambda: scene.counter(pod, "kv_blocks_reserved") > 0, "a reservation", here)
    await scene.walk(lambda: scene.num_placed > 0, "the first blocks", here, engine)
    await _rest_is_missing(scene)  # to fetch more would take about as long as to compute the little that is left
    if scene.counter(pod, "num_requests_running") < num_others:
        raise TooFast("the others are done")


async def landed(scene: Scene, num_blocks: int) -> None:
    """Everything is here; the prefill pod hardly knows, it stands still since it wrote the last bytes."""
    front = scene.front(scene.p)
    scene.stop(front)
    await scene.ask()
    await scene.walk(lambda: scene.num_placed >= num_blocks, "the last block", front)


async def fencing(scene: Scene) -> None:
    """The client went away while blocks came; the prefill pod does not answer to the fence."""
    await shipping(scene)
    scene.stop(scene.front(scene.p))
    await scene.stream.leave()
    await until(lambda: scene.cluster.router_metrics()["router_requests_active"] == 0, "the cancellation")


async def resumable(scene: Scene) -> None:
    """The prefill pod is dead, what landed is kept, and the decode pod's engine has not gone on."""
    await shipping(scene)
    scene.stop(scene.cluster.engine_of(scene.d))
    lost = scene.num_lost
    scene.cluster.kill(scene.p)
    await until(lambda: scene.num_lost > lost, "the loss")


async def decoding(scene: Scene) -> None:
    """Some tokens came, and the decode pod's engine stands still."""
    engines = {pod["id"]: scene.cluster.engine_of(pod) for pod in scene.decode}
    for engine in engines.values():  # none can be through before it is known which one has it
        scene.stop(engine)
    await scene.ask()
    engine = engines.pop(scene.d["id"])
    for other in engines.values():
        scene.let_go(other)
    await scene.walk(lambda: len(scene.stream.tokens) > 2, "the third token", engine)
    await _all_is_told(scene)
    if scene.counter(scene.d, "num_requests_running") == 0:
        raise TooFast("all tokens came")


async def handed_over(scene: Scene) -> None:
    """A draining decode pod gave the request up; the one that is to go on with it stands still."""
    await decoding(scene)
    engine = scene.cluster.engine_of(scene.d)
    for pod in scene.decode:
        if pod is not scene.d:
            scene.stop(scene.front(pod))
    scene.front(scene.d).terminate()
    await until(lambda: "is handed over" in scene.cluster.log(scene.d["id"]), "the end of the time to finish")
    await scene.walk(lambda: scene.counter(scene.d, "requests_handed_over_total") > 0, "the hand-over", engine)


async def fetching(scene: Scene) -> None:
    """The next decode pod fetches what a draining one holds for it, and is not answered."""
    await handed_over(scene)
    scene.resume_next()
    await until(lambda: scene.counter(scene.d, "exports_fetches_total") > 0, "the fetch")
