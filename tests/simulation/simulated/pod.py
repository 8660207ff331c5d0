"""A pod of a world: the product's process object, on a front and an engine that may be killed, frozen and started anew.

Knows nothing of requests. Invariant: what comes back after an end has the pod's name and address, and nothing else of
what was before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pagewire.cli.pod import PodProcess
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.decode_service.service import DecodeService
from pagewire.engine.exchange.exchange import Exchange
from pagewire.kvtransfer.offers import Offer, Offers
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.prefill_service.service import PrefillService
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.tls import CLEAR
from simulated.carriers import slowly
from simulated.engine import EngineProcess
from simulated.loop import Process
from simulated.redis import ADDRESS

if TYPE_CHECKING:
    from simulated.world import World

SECRET = "simulated"
DRAIN_S = 1.0
HANDOVER_S = 3.0
TRANSFER_S = 4.0
RESTART_S = 0.5  # until whoever looks after pods starts one anew that has ended by itself


class SimulatedPod:
    """One pod."""

    def __init__(self, world: World, name: str, role: Role, number: int) -> None:
        self.name = name
        self.role = role
        self.number = number
        self._world = world
        self.start()

    def start(self) -> None:
        """Start it, for the first time or anew."""
        world = self._world
        self.front = world.process(self.name, self.number)
        self.engine_process = world.process(f"{self.name}.engine", self.number)
        self.is_ready = False
        self.process: PodProcess | None = None
        self.engine: EngineProcess | None = None
        world.note("starts", self.name)
        self.front.spawn(self._main(self.front))

    def start_anew(self) -> None:
        """Start it where it does not run."""
        if not self.is_alive:
            self.start()

    @property
    def is_alive(self) -> bool:
        """True while its front runs, frozen or not."""
        return self.front.is_alive

    @property
    def service(self) -> DecodeService | PrefillService | None:
        """What it does; None before it does anything."""
        service = self.process.service if self.process is not None else None
        return service if isinstance(service, DecodeService | PrefillService) else None

    @property
    def exchange(self) -> Exchange | None:
        """Its part in the KV plane."""
        return self.service._exchange if self.service is not None else None

    def kill(self, *, silently: bool = False) -> None:
        """End front and engine at once; `silently`, with their machine."""
        for process in (self.front, self.engine_process):
            process.kill()
        self._world.network.break_all(self.front, silently=silently)

    def become(self, role: Role) -> None:
        """Have it take another role, until it ends."""
        if self.process is not None:
            self._world.note("drains", self.name, incarnation=self.incarnation)
            self.front.run(self.process.front.change_role, role)

    def stop(self) -> None:
        """Have it drain, as SIGTERM does."""
        if self.process is not None:
            self._world.note("drains", self.name, incarnation=self.incarnation)
            self.front.run(self.process.stop, "SIGTERM")

    def leftovers(self) -> str:
        """Return what it holds for somebody, "" where it is at rest."""
        exchange, engine, service = self.exchange, self.engine, self.service
        if exchange is None or engine is None or service is None:
            return "it has not begun"
        load = engine.loop.load()
        peers = exchange.peers.all().values()
        streams = [peer.receiver._stream for peer in peers]
        held = {
            "blocks_held": load.blocks_held,
            "blocks_reserved": load.blocks_reserved,
            "blocks_orphaned": load.blocks_orphaned,
            "unaccounted": load.blocks_total - load.blocks_free - load.blocks_cached - load.blocks_pinned,
            "sequences": len(engine.scheduler.sequences),
            "exports": len(exchange.exports),
            "leases": len(exchange.exports._leases),
            "deliveries": sum(len(peer._deliveries) for peer in peers),
            "quarantined": exchange.peers.num_quarantined,
            "registered": sum(len(stream.inbox.keys()) for stream in streams if stream is not None),
            "waiting_blocks": sum(stream.inbox.num_waiting for stream in streams if stream is not None),
        }
        if isinstance(service, DecodeService):
            held["requests"] = len(service._requests)
            held["waiting"] = service._admission.num_waiting
            held["handovers"] = len(service._handovers)
        return ", ".join(f"{name} {number}" for name, number in held.items() if number)

    def states(self) -> set[str]:
        """Return the states of what is on its way to it, and from it."""
        exchange = self.exchange
        if exchange is None:
            return set()
        found = {f"out:{export.shipment.state.value}" for export in exchange.exports.all()}
        for peer in exchange.peers.all().values():
            found |= {f"in:{delivery.shipment.state.value}" for delivery in peer._deliveries.values()}
        service = self.service
        if isinstance(service, DecodeService) and service._requests:
            found.add("decoding" if self.engine is not None and self.engine.scheduler.running else "requests")
        return found

    async def _main(self, front: Process) -> None:
        world = self._world
        self.engine = EngineProcess(
            world.loop, self.engine_process, front, self.role, world.plan.engine, world.tokenizer_digest,
            world.chance(f"{self.name} {world.loop.true_s}"), world.breach,
        )  # fmt: skip
        self.engine.on_reserve = self._admits
        config = PodConfig(
            model="checkable",
            role=self.role,
            host=self.name,
            port=1,
            pod_id=self.name,
            cluster_secret=SECRET,
            redis_url=f"redis://{ADDRESS}/0",
            prefix_fetch=world.plan.prefix_fetch,  # type: ignore[arg-type]
            max_num_waiting=world.plan.max_num_waiting,
            drain_s=DRAIN_S,
            handover_s=HANDOVER_S,
            transfer_timeout_s=TRANSFER_S,
        )
        self.process = PodProcess(config, self.engine.start(), self._offers(), CLEAR)
        try:
            await self.process.run(lambda _: self._ready())
        except EngineFailed:
            world.note("engine_failed", self.name)
        world.note("exit", self.name)
        self.kill()
        world.later(RESTART_S, self.start_anew)

    def _admits(self, request_id: str) -> None:
        self._world.note("admits", self.name, attempt=request_id, incarnation=self.incarnation)

    def _ready(self) -> None:
        self.is_ready = True

    @property
    def incarnation(self) -> str:
        """Which of its name it is."""
        return self.process.front.identity.incarnation if self.process is not None else ""

    @property
    def is_admitting(self) -> bool:
        """True until it drains."""
        return self.process is not None and self.process.front.lifecycle.is_ready

    @property
    def serves(self) -> Role:
        """The role that it has now."""
        return self.process.front.identity.role if self.process is not None else self.role

    def _offers(self) -> Offers:
        offers = {"local": self._world.pools.offer(), "grpc": Offer(GRPC)}
        chance = self._world.chance(f"copies of {self.name}")
        return Offers(tuple(slowly(offers[name], chance) for name in self._world.plan.transports.split(",")))


async def wait_until(condition: object, within_s: float, every_s: float = 0.05) -> bool:
    """Return whether `condition()` comes true in time."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within_s
    while not condition():  # type: ignore[operator]
        if loop.time() >= ends_s:
            return False
        await asyncio.sleep(every_s)
    return True
