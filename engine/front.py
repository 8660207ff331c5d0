"""What the front of every pod does that is not its job: steps, links, discovery, metrics, health, drain.

The front speaks and the engine steps, in two processes, so that bulk bytes never share an interpreter with a step.
A front is a pod for as long as it has one role: one incarnation, which begins with what its engine caches and ends in
a drain. `Front.run` is all of it. It knows no prefill and no decode: that is the `Service` it is given. Engine and
doors are lent, and outlive it.

Invariant: health is SERVING only while the engine process lives and the pod admits work.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from pagewire.core.engine_messages import StepDone
from pagewire.core.errors import Draining, EngineFailed, InvalidRequest, RoleRefused
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.core.side_door import SideDoor
from pagewire.core.trace_context import TraceContext
from pagewire.engine import pin, pinning, prefix_file
from pagewire.engine.role_policy import ROLES
from pagewire.engine.running_engine import RunningEngine
from pagewire.kvtransfer.offers import Offers
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.cache_feed import CacheFeed
from pagewire.serving.certificate_expiry import CertificateExpiry
from pagewire.serving.doors import Doors
from pagewire.serving.handshake import Identity
from pagewire.serving.lifecycle import Lifecycle
from pagewire.serving.metrics import About, LoadCollector
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.publisher import Publisher
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registration import Registration
from pagewire.serving.registry import Registry
from pagewire.serving.sample import Sample
from pagewire.serving.step_counts import StepCounts
from pagewire.serving.tls import Wire
from pagewire.serving.tracing import Exporter, Process, Tracing

log = logging.getLogger(__name__)

Ready = Callable[[dict[str, object]], None]


class Service(Protocol):
    """A pod's job."""

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return what the pod's gRPC server answers beside health."""
        ...

    def on_step(self, step: StepDone) -> None:
        """Take what a step of the engine brought about; called in order on the event loop, must not block."""
        ...

    def counters(self) -> dict[str, float]:
        """Return totals since the start, by metric name."""
        ...

    def gauges(self) -> Iterator[Sample]:
        """Yield what is measured now beside the engine's load."""
        ...

    async def drained(self) -> None:
        """Return when every admitted request is settled."""
        ...

    def hand_over(self) -> None:
        """The time to finish by itself is over: let other pods go on with what still runs; `drained` follows."""
        ...

    async def fail(self, error: EngineFailed) -> None:
        """The engine is gone: settle every request with `error`."""
        ...

    async def aclose(self) -> None:
        """End links and transports."""
        ...


class Front:
    """The front of a pod that has `role`, with its engine running. `next_role` is what it drains for, if for one.

    `exporter` takes the spans of traced requests; None: nothing is traced. `door` is where links get their sockets;
    None: they go over gRPC.
    """

    def __init__(
        self,
        config: PodConfig,
        role: Role,
        engine: RunningEngine,
        offers: Offers,
        wire: Wire,
        exporter: Exporter | None = None,
        door: SideDoor | None = None,
    ) -> None:
        self.config = config
        self.engine = engine
        self.offers = offers
        self.lifecycle = Lifecycle()
        self.next_role: Role | None = None
        self.identity = Identity(
            peer_id=config.pod_id or f"{role.value}-{os.urandom(4).hex()}",
            incarnation=os.urandom(4).hex(),
            role=role,
            secret=config.cluster_secret.encode(),
            fingerprint=engine.ready.fingerprint,
            transports=offers.texts,
        )
        self.cache_feed = CacheFeed()
        self.wire = wire
        self.door = door
        self.tracing: Tracing | None = None
        if exporter is not None:
            self.tracing = Tracing(exporter, Process(f"pagewire-{role.value}", self.identity.peer_id))
        self._step_counts = StepCounts()
        self.address = ""  # where peers dial it, once it serves
        self._load = Load(blocks_total=engine.ready.num_blocks, blocks_free=engine.ready.num_blocks)

    def load(self) -> Load:
        """Return the engine's latest word on its load, and whether the pod drains."""
        return self._load if self.lifecycle.is_ready else _draining(self._load)

    def trace_of(self, traceparent: str) -> TraceContext | None:
        """Return what the spans of a request are below; None where it is not traced, or nothing is here."""
        return self.tracing.begin(traceparent) if self.tracing is not None and traceparent else None

    def note(self, step: StepDone) -> None:
        """Take the engine's latest word on its load, its steps and its cache."""
        self._step_counts.note(step)
        if step.load is not None:
            self._load = step.load
        if step.stored or step.evicted:
            self.cache_feed.note(step.stored, step.evicted)

    def change_role(self, role: Role) -> None:
        """Begin to drain, to come back with `role`.

        Raises InvalidRequest for what is no pod's role, RoleRefused for one that this pod has or cannot have, Draining.
        """
        pod_id = self.identity.peer_id
        if role not in ROLES:
            raise InvalidRequest(f"a pod's role is one of {', '.join(ROLES)}, not {role}", field="role")
        if not self.lifecycle.is_ready:
            raise Draining(f"{pod_id} is draining")
        if role is self.identity.role:
            raise RoleRefused(f"{pod_id} is a {role} pod already")
        for refused in self.engine.ready.refused_roles:
            if refused.role is role:
                raise RoleRefused(f"{pod_id} cannot be a {role} pod: {refused.reason}")
        self.next_role = role
        self.lifecycle.drain(f"becomes a {role} pod")

    async def run(self, service: Service, doors: Doors, on_ready: Ready) -> None:
        """Serve until drained; `lifecycle` is stopped then, and the service closed.

        Raises EngineFailed when the engine dies, ValueError when a prefix is not pinned.
        """
        config, identity = self.config, self.identity
        async with contextlib.AsyncExitStack() as ends:  # whatever was begun is ended, the last thing first
            ends.callback(self.lifecycle.stopped)
            ends.push_async_callback(service.aclose)
            self.address = self.config.advertise or doors.address
            expiry = CertificateExpiry([(config.tls_cert, config.tls_key)])
            collector = LoadCollector(
                self._about(), self.load, self._counters_of(service),
                lambda: itertools.chain(service.gauges(), expiry.samples()), self._step_counts,
                pids={"front": os.getpid(), "engine": self.engine.pid}, devices=self.engine.ready.devices,
            )  # fmt: skip
            registration = Registration(
                pod_id=identity.peer_id,
                incarnation=identity.incarnation,
                role=identity.role,
                address=self.address,
                metrics=doors.metrics_address,
                fingerprint=self.engine.ready.fingerprint,
            )
            redis = RedisAddress.parse(config.redis_url, config.redis_ca, cert=config.redis_cert, key=config.redis_key)
            registry, index = Registry(redis, config.cluster), BlockIndex(redis, config.cluster)
            ends.push_async_callback(registry.aclose)
            ends.push_async_callback(index.aclose)
            publisher = Publisher(registry, index, registration)
            self.engine.on_step = lambda step: self._tell(step, publisher)
            await self.engine.become(identity.role)
            pinned = asyncio.create_task(self._pin_prefixes(publisher))
            ends.push_async_callback(_stop, pinned)
            asked = asyncio.create_task(self.lifecycle.wait_draining())
            ends.push_async_callback(_stop, asked)
            await _first_of(pinned, asked)  # prefixes may take minutes, and who is to stop waits for none
            if not pinned.done():
                return
            pinned.result()
            self.engine.on_step = self._steps_to(service, publisher)
            doors.lead_to(service.handlers(), collector)
            ends.callback(doors.lead_nowhere)
            publishing = asyncio.create_task(publisher.run())
            ends.push_async_callback(_stop, publishing)
            self.lifecycle.ready()
            showing = asyncio.create_task(self._show(doors, publisher))
            ends.push_async_callback(_stop, showing)
            on_ready({
                "id": identity.peer_id, "grpc": doors.address, "role": identity.role.value, "pid": os.getpid(),
                "metrics": f"{config.metrics_scheme}://{registration.metrics}/metrics",
            })  # fmt: skip
            await self._until_drained(doors, service, publisher, publishing)

    async def _show(self, doors: Doors, publisher: Publisher) -> None:
        """Have health say that this pod serves once routers can find it.

        Else an upgrade while Redis is away would go through all pods, which were found, for ones that are not.
        """
        await publisher.registered.wait()
        doors.serving(self.lifecycle.is_ready)

    async def _until_drained(
        self, doors: Doors, service: Service, publisher: Publisher, publishing: asyncio.Task[None]
    ) -> None:
        died = asyncio.create_task(self.engine.exited.wait())
        asked = asyncio.create_task(self.lifecycle.wait_draining())
        try:
            await _first_of(died, asked)
            if not died.done():
                # Readiness goes first, liveness stays; withdrawn from discovery, then the admitted are finished.
                doors.serving(False)
                await _stop(publishing)  # it would register the pod anew
                await publisher.withdraw()
                settled = asyncio.create_task(service.drained())
                await _first_of(died, settled, timeout_s=self.config.drain_s)
                if not (died.done() or settled.done()):
                    log.info("what runs after %s s is handed over", self.config.drain_s)
                    service.hand_over()
                    await _first_of(died, settled, timeout_s=self.config.handover_s)
                    if not settled.done():
                        log.warning("not handed over within %s s: the rest is cut off", self.config.handover_s)
                settled.cancel()
            if died.done():
                self.lifecycle.drain("the engine process died")
                doors.serving(False)
                error = EngineFailed("the engine process died")
                await service.fail(error)
                raise error
        finally:
            died.cancel()
            asked.cancel()

    async def _pin_prefixes(self, publisher: Publisher) -> None:
        config = self.config
        if not config.pin_prefix:
            return
        prefixes = await asyncio.to_thread(prefix_file.read, Path(config.pin_prefix), Path(config.model))
        pins = pin.plan(prefixes, self.engine.ready, key=config.cluster_secret.encode(), share=config.pin_share)
        await pinning.compute(self.engine, pins, lambda step: self._tell(step, publisher))

    def _about(self) -> About:
        ready, identity = self.engine.ready, self.identity
        cache = {
            "block_size": str(ready.layout.block_size),
            "cache_dtype": ready.layout.dtype,
            "num_gpu_blocks": str(ready.num_blocks),
            "enable_prefix_caching": str(self.config.prefix_caching),
        }
        model = ready.fingerprint.model_name
        return About(pod_id=identity.peer_id, role=identity.role.value, model=model, cache=cache)

    def _counters_of(self, service: Service) -> Callable[[], dict[str, float]]:
        tracing = self.tracing
        return service.counters if tracing is None else lambda: {**service.counters(), **tracing.counters()}

    def _steps_to(self, service: Service, publisher: Publisher) -> Callable[[StepDone], None]:
        def on_step(step: StepDone) -> None:
            self._tell(step, publisher)
            service.on_step(step)

        return on_step

    def _tell(self, step: StepDone, publisher: Publisher) -> None:
        self.note(step)
        if step.stored or step.evicted:
            publisher.publish(step.stored, step.evicted)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _first_of(*tasks: asyncio.Task[object], timeout_s: float | None = None) -> None:
    """Return when one of `tasks` is done, or after `timeout_s`."""
    done = asyncio.Event()
    for task in tasks:
        task.add_done_callback(lambda _task: done.set())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await done.wait()


def _draining(load: Load) -> Load:
    return dataclasses.replace(load, draining=True)
