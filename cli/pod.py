"""A pod's process: one engine, two doors, and the service of one role after another, until it is told to stop.

    starting -> role -> (drained, told another) -> another role -> ... -> stopped

A change of role keeps the process, the engine with all that it caches, the pod's name and its addresses; everything
else ends with the role before: links, shipments, the registration, the incarnation. The only place that knows both
services.

Invariant: SIGTERM ends the process with a drain wherever it comes, in the midst of a change too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Mapping

from pagewire.core.messages import Role
from pagewire.core.side_door import SideDoor
from pagewire.core.tasks import check_cancelled
from pagewire.decode_service import main as decode
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.engine.front import Front, Ready, Service
from pagewire.engine.running_engine import RunningEngine
from pagewire.kvtransfer.offers import Offers
from pagewire.kvtransfer.transports.offered import offered
from pagewire.prefill_service import main as prefill
from pagewire.serving import logs
from pagewire.serving.doors import Doors
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.tls import Wire
from pagewire.serving.tracing import Exporter, open_exporter

log = logging.getLogger(__name__)

SERVICES: Mapping[Role, Callable[[Front], Service]] = {
    Role.PREFILL: prefill.service,
    Role.DECODE: decode.service,
    Role.COLOCATED: decode.service,
}


async def run(config: PodConfig, on_ready: Ready) -> None:
    """Serve until SIGTERM or SIGINT, then drain; `on_ready` hears of the first role, once it can be served.

    Raises ValueError on a bad configuration, OSError where a port is taken, EngineFailed when the engine dies.
    """
    if not config.pod_id:
        config = dataclasses.replace(config, pod_id=f"{config.role.value}-{os.urandom(4).hex()}")
    logs.configure(config.pod_id, config.log_level, config.log_format)
    if config.host in ("0.0.0.0", "::") and not config.advertise:
        log.warning("peers are told to dial %s, which to each host is itself: others need `advertise`", config.host)
    engine_config = EngineConfig.of(config)
    door = _side_door(config)
    offers = offered(config.transports, config.shm_dir, config.host, config.device, door=door)
    wire = config.wire()  # a bad certificate is refused before anything is loaded
    exporter = open_exporter(config.otlp_endpoint)
    loop = asyncio.get_running_loop()
    starting = asyncio.create_task(EngineClient.start(engine_config))
    for number in (signal.SIGTERM, signal.SIGINT):  # PID 1 of a container would not even hear one without a handler
        loop.add_signal_handler(number, starting.cancel)
    try:
        engine = await starting
    except asyncio.CancelledError:
        check_cancelled()
        log.info("told to stop while the engine started")
        return
    pod = PodProcess(config, engine, offers, wire, exporter, door)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, pod.stop, signal.Signals(number).name)
    await pod.run(on_ready)


class PodProcess:
    """One pod, with its engine running; `front` is what it is now, `service` what it does."""

    def __init__(
        self,
        config: PodConfig,
        engine: RunningEngine,
        offers: Offers,
        wire: Wire,
        exporter: Exporter | None = None,
        door: SideDoor | None = None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._offers = offers
        self._wire = wire
        self._exporter = exporter
        # What stands before a port that others dial forwards no port that is free by chance.
        self._door = door if config.socket_port or not config.advertise else None
        self._is_stopping = False
        self.front = self._front_as(config.role)
        self.service: Service | None = None

    def stop(self, reason: str) -> None:
        """Drain and take no role any more."""
        self._is_stopping = True
        self.front.lifecycle.drain(reason)

    async def run(self, on_ready: Ready) -> None:
        """Serve in one role after another. The engine is closed then, and the ports."""
        async with contextlib.AsyncExitStack() as ends:
            if self._exporter is not None:
                ends.push_async_callback(asyncio.to_thread, self._exporter.close)
            ends.push_async_callback(self._engine.close)
            config = self._config
            credentials = self._wire.credentials()
            doors = await Doors.open(
                config.host,
                config.port,
                config.metrics_port,
                credentials=credentials,
                metrics_tls=config.metrics_context(),
            )
            ends.push_async_callback(doors.close)
            while True:
                front = self.front
                role = front.identity.role
                self.service = SERVICES[role](front)
                await front.run(self.service, doors, on_ready)
                if front.next_role is None or self._is_stopping:
                    return
                log.info("the %s pod is a %s pod from now on", role, front.next_role)
                self.front, on_ready = self._front_as(front.next_role), _logged

    def _front_as(self, role: Role) -> Front:
        return Front(self._config, role, self._engine, self._offers, self._wire, self._exporter, self._door)


def _side_door(config: PodConfig) -> SideDoor | None:
    """Where sockets come in beside gRPC; nowhere where all is encrypted."""
    if config.tls_ca:
        return None
    return SideDoor(config.host, config.socket_port, config.advertise.rpartition(":")[0].strip("[]"))


def _logged(said: dict[str, object]) -> None:
    log.info("ready again: %s", said)
