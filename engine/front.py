"""What the front of every pod does that is not its job: engine, gRPC server, links, discovery, metrics, health, drain.

The front speaks and the engine steps, in two processes, so that bulk bytes never share an interpreter with a step.
`Front.run` is a pod's whole life. It knows no prefill and no decode: that is the `Service` it is given.

Invariant: health is SERVING only while the engine process lives and the pod admits work.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from pagewire.core.engine_messages import StepDone
from pagewire.core.errors import EngineFailed
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.engine import pin, pinning, prefix_file
from pagewire.engine.running_engine import RunningEngine
from pagewire.kvtransfer.offers import Offers
from pagewire.serving.grpc_server import GrpcServer
from pagewire.serving.handshake import Identity
from pagewire.serving.lifecycle import Lifecycle
from pagewire.serving.metrics import LoadCollector, Sample, serve
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.registry import Publisher, Registration, Registry

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
    """One pod's front, with its engine running."""

    def __init__(self, config: PodConfig, role: Role, engine: RunningEngine, offers: Offers) -> None:
        self.config = config
        self.engine = engine
        self.offers = offers
        self.lifecycle = Lifecycle()
        self.identity = Identity(
            peer_id=config.pod_id or f"{role.value}-{os.urandom(4).hex()}",
            incarnation=os.urandom(4).hex(),
            role=role,
            secret=config.cluster_secret.encode(),
            fingerprint=engine.ready.fingerprint,
            transports=offers.texts,
        )
        self.address = ""  # where peers dial it, once it serves
        self._load = Load(blocks_total=engine.ready.num_blocks, blocks_free=engine.ready.num_blocks)

    def load(self) -> Load:
        """Return the engine's latest word on its load, and whether the pod drains."""
        return self._load if self.lifecycle.is_ready else _draining(self._load)

    def note(self, step: StepDone) -> None:
        """Take the engine's latest word on its load."""
        if step.load is not None:
            self._load = step.load

    async def run(self, service: Service, on_ready: Ready) -> None:
        """Serve until drained.

        Raises EngineFailed when the engine dies, OSError when a port is taken, ValueError when a prefix is not pinned.
        """
        config, identity = self.config, self.identity
        async with contextlib.AsyncExitStack() as ends:  # whatever was begun is ended, the last thing first
            ends.callback(self.lifecycle.stopped)
            ends.push_async_callback(self.engine.close)
            server = GrpcServer(config.host, config.port, service.handlers())
            ends.push_async_callback(server.stop, grace_s=1.0)
            ends.push_async_callback(service.aclose)
            await server.start()
            self.address = server.address
            collector = LoadCollector(
                identity.peer_id, identity.role.value, self.load, service.counters, service.gauges
            )
            metrics = serve(collector, config.host, config.metrics_port)
            ends.callback(metrics.server_close)
            ends.callback(metrics.shutdown)
            registration = Registration(
                pod_id=identity.peer_id,
                incarnation=identity.incarnation,
                role=identity.role,
                address=server.address,
                metrics=f"{config.host}:{metrics.server_port}",
                fingerprint=self.engine.ready.fingerprint,
            )
            registry = Registry(config.redis_url, config.cluster)
            ends.push_async_callback(registry.aclose)
            publisher = Publisher(registry, lambda: registration)
            await self._pin_prefixes(publisher)
            self.engine.on_step = self._steps_to(service, publisher)
            publishing = asyncio.create_task(publisher.run())
            ends.push_async_callback(_stop, publishing)
            self.lifecycle.drain_on_signals()
            self.lifecycle.ready()
            await server.serving(True)
            on_ready({
                "id": identity.peer_id, "grpc": server.address, "metrics": f"http://{registration.metrics}/metrics",
                "pid": os.getpid(), "role": identity.role.value,
            })  # fmt: skip
            await self._until_drained(server, service, publisher)

    async def _until_drained(self, server: GrpcServer, service: Service, publisher: Publisher) -> None:
        died = asyncio.create_task(self.engine.exited.wait())
        asked = asyncio.create_task(self.lifecycle.wait_draining())
        try:
            await _first_of(died, asked)
            if not died.done():
                # Readiness goes first, liveness stays; withdrawn from discovery, then the admitted are finished.
                await server.serving(False)
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
                await server.serving(False)
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
