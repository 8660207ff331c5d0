"""One world: a cluster of the product's own processes in virtual time, what is asked of it, and what goes wrong in it.

    starting -> everybody is linked -> requests and faults -> all requests are over -> at rest, or not -> history

Knows pods, routers and Redis; what is right is the checker's to say. Invariant: a plan plays the same every time.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import byte_tokenizer

from pagewire.core.errors import HandedOver
from pagewire.core.messages import Ended, Role, Submit, Welcome
from pagewire.kvtransfer.transports.local import LocalPools
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.grpc_server import GrpcServer
from pagewire.text.tokenizer import Tokenizer
from simulated import edges
from simulated.faults import FAULTS
from simulated.history import History
from simulated.loop import PROCESS, Process, SimulatedLoop, Stuck
from simulated.network import Delivery, End, Network
from simulated.plan import Plan, RequestPlan
from simulated.pod import SimulatedPod, wait_until
from simulated.redis import RedisDouble
from simulated.router import SimulatedRouter
from simulated.tcp import connector

START_S = 20.0
OVER_S = 30.0  # beyond its deadline, until a request must be over
REST_S = 60.0  # beyond the last request and fault: leases, silences, hand-overs and fences are over by then


class World:
    """One play of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.history = History()
        self.struck: Counter[str] = Counter()  # how often each kind of fault did something
        self.states: set[str] = set()  # those that faults met, as "kind at state"
        self.loop = SimulatedLoop(Random(f"order {plan.seed}"))
        self.loop.on_error = self._error
        self.network = Network(self.loop, self.chance("network"))
        self.network.meddle = self._meddle
        self.network.tap = self._tap
        self.loop.connect = connector(self.network)
        self.meddlers: list[Callable[[End, Any], Iterable[Delivery] | None]] = []
        self.tokenizer_folder, self.tokenizer_digest = tokenizer()
        self.pools: LocalPools
        self.redis: RedisDouble
        self.pods: list[SimulatedPod] = []
        self.routers: list[SimulatedRouter] = []
        self.began_s = 0.0
        self._at_ends: dict[End, str] = {}  # which incarnation of a pod a router is linked with

    def play(self) -> History:
        """Play it; what went wrong with the play itself is in the history too."""
        logging.disable(logging.CRITICAL)
        with edges.installed(self.loop, self.network, self.chance("edges")), self._hearing_of_health():
            self.pools = LocalPools()
            try:
                self.loop.run_world(self._main())
            except Stuck as stuck:
                self.note("stuck", "world", why=str(stuck))
        return self.history

    # ---------------------------------------------------------------------------------------------- what its parts use

    def chance(self, name: str) -> Random:
        """Return chance for one purpose: who draws more from it changes nobody else's."""
        return Random(f"{name} {self.plan.seed}")

    def note(self, kind: str, who: str, **what: Any) -> None:
        """Something happened."""
        self.history.note(self.loop.true_s - self.began_s, kind, who, **what)

    def breach(self, why: str) -> None:
        """Something happened that never may."""
        self.note("breach", "world", why=why)

    def process(self, name: str, number: int) -> Process:
        """Return a new process, on the machine of that number."""
        rates, walls = self.plan.clock_rates, self.plan.wall_s
        return Process(self.loop, name, rate=rates[number % len(rates)], wall_s=walls[number % len(walls)])

    def of(self, *roles: Role) -> list[SimulatedPod]:
        """Return the pods of these roles that live."""
        return [pod for pod in self.pods if pod.serves in roles and pod.is_alive]

    def later(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        """Have something done."""
        self.loop.at(self.loop.true_s + seconds, callback, *args)

    def strikes(self, kind: str, states: Iterable[str] = ()) -> None:
        """A fault of that kind did something, while things were in these states."""
        self.struck[kind] += 1
        self.states.update(f"{kind} at {state}" for state in states)

    # ------------------------------------------------------------------------------------------------------ its course

    async def _main(self) -> None:
        plan = self.plan
        self.redis = RedisDouble(self.process("redis", 0), self.network, self.chance("redis"))
        roles = [Role.PREFILL] * plan.num_prefill + [
            Role.DECODE if plan.num_prefill else Role.COLOCATED
        ] * plan.num_decode
        for number, role in enumerate(roles, 1):
            self.pods.append(SimulatedPod(self, f"{role.value[0]}{number}", role, number))
        for number in range(plan.num_routers):
            self.routers.append(SimulatedRouter(self, f"router{number}", len(roles) + 1 + number))
        if not await wait_until(self._is_up, START_S):
            return self.note("not_up", "world")
        self.began_s = self.loop.true_s
        self.note("up", "world")
        asking = [self.loop.world.spawn(self._ask(request)) for request in plan.requests]
        for fault in plan.faults:
            self.later(fault.at_s, self._strike, fault)
        await asyncio.gather(*asking)
        ends_s = max((fault.at_s + fault.lasts_s for fault in plan.faults), default=0.0)
        await asyncio.sleep(max(0.0, self.began_s + ends_s + 0.1 - self.loop.true_s))
        self.note("quiet", "world")
        quiet_s = self.loop.true_s
        if await wait_until(lambda: not self._leftovers(), REST_S, 0.25):
            self.note("at_rest", "world", after_s=self.loop.true_s - quiet_s)
        await self._probe()
        if not await wait_until(lambda: not self._leftovers(), REST_S, 0.25):
            for who, held in self._leftovers().items():
                self.note("leftover", who, held=held)
        for pod in self.pods:
            if pod.is_alive and pod.engine is not None:
                try:
                    pod.engine.loop.check()
                except AssertionError as error:
                    self.note("broken_pool", pod.name, why=str(error))
        self.note("over", "world")

    async def _probe(self) -> None:
        """See that the cluster is well again: everybody is back, and answers."""
        if not await wait_until(self._is_up, REST_S, 0.25):
            linked = {router.name: router.num_linked() for router in self.routers}
            return self.note(
                "not_well", "world", linked=linked, pods=[pod.name for pod in self.pods if not pod.is_ready]
            )
        await asyncio.gather(*(self.loop.world.spawn(self._ask(request)) for request in self.plan.probes()))

    def _is_up(self) -> bool:
        return all(pod.is_ready for pod in self.pods) and all(
            router.num_linked() == len(self.pods) for router in self.routers
        )

    def _leftovers(self) -> dict[str, str]:
        found = {pod.name: pod.leftovers() for pod in self.pods if pod.is_alive}
        for each in self.routers:
            if each.process.is_alive and each.router is not None:
                active, inboxes = each.router.dispatcher.active, len(each.router.dispatcher._inboxes)
                found[each.name] = f"{active} requests, {inboxes} inboxes" if active or inboxes else ""
        return {name: held for name, held in found.items() if held}

    async def _ask(self, request: RequestPlan) -> None:
        await asyncio.sleep(request.at_s)
        router = self.routers[request.router % len(self.routers)]
        if not router.process.is_alive:
            return self.note("turned_away", request.name)
        task, process = router.ask(request), router.process
        if request.leaves_s is not None:
            self.later(request.leaves_s, self._leave, process, task)
        if not await wait_until(lambda: task.done() or not process.is_alive, request.timeout_s + OVER_S):
            self.note("endless", request.name)

    def _leave(self, process: Process, task: asyncio.Task[None]) -> None:
        if not task.done() and process.is_alive:
            self.strikes("leave", (state for pod in self.pods if pod.is_alive for state in pod.states()))
            process.soon(task.cancel)

    def _strike(self, fault: Any) -> None:
        self.note("fault", fault.kind, lasts_s=fault.lasts_s)
        FAULTS[fault.kind].strike(self, fault)

    def _meddle(self, end: End, payload: Any) -> Iterable[Delivery] | None:
        for meddler in self.meddlers:
            told = meddler(end, payload)
            if told is not None:
                return told
        return None

    def _tap(self, end: End, payload: Any) -> None:
        """Note what routers submit, and what pods hand over to them."""
        if end.edge != "link" or not isinstance(payload, bytes):
            return
        if end.process.name.startswith("router"):
            for message in LINK_CODEC.decode(payload):
                if isinstance(message, Submit):
                    attempt = message.spec.request_id
                    name = attempt.rpartition(".")[0]
                    self.note(
                        "submit", end.process.name, request=name, attempt=attempt, pod=end.peer.process.name,
                        incarnation=self._at_ends.get(end, ""),
                    )  # fmt: skip
        elif end.peer.process.name.startswith("router"):
            if end.peer in self._at_ends and HandedOver.cause.encode() not in payload:
                return  # not read: most of all that is said is tokens
            for message in LINK_CODEC.decode(payload):
                if isinstance(message, Welcome):
                    self._at_ends[end.peer] = message.incarnation
                elif isinstance(message, Ended) and message.error and message.error.cause == HandedOver.cause:
                    self.note("hands_over", end.process.name, attempt=message.request_id)

    def _hearing_of_health(self) -> contextlib.AbstractContextManager[object]:
        """Note when pods say that they are ready, in one role after another: their health says so, before they do."""
        serving = GrpcServer.serving

        def heard(server: GrpcServer, is_serving: bool, service: str = "") -> None:
            process = PROCESS.get()
            for pod in self.pods:
                if is_serving and pod.front is process:
                    self.note("ready", pod.name, incarnation=pod.incarnation)
            serving(server, is_serving, service)

        return mock.patch.object(GrpcServer, "serving", heard)

    def _error(self, process: Process, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.note("error", process.name, message=context.get("message"), error=repr(error))


@functools.cache
def tokenizer() -> tuple[Path, str]:
    """Return the folder of the tokenizer that all worlds have, and its digest; it is gone with this process."""
    folder = byte_tokenizer.save(Path(tempfile.mkdtemp(prefix="pagewire-simulation-")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder, Tokenizer(folder).digest
