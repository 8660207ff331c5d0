"""Constructs a prefill pod and runs it."""

from __future__ import annotations

import time

from pagewire.core.clock import MonotonicClock
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.engine.front import Front, Ready
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports.grpc import GrpcSender
from pagewire.prefill_service.service import PrefillService
from pagewire.serving import logs
from pagewire.serving.pod_config import PodConfig


async def run(config: PodConfig, on_ready: Ready) -> None:
    """Serve until SIGTERM, then drain. Raises ValueError on a bad configuration, EngineFailed when the engine dies."""
    logs.configure(config.pod_id or config.role.value, config.log_level)
    engine = await EngineClient.start(EngineConfig.of(config))
    front = Front(config, config.role, engine, ("grpc",))
    sender = GrpcSender(
        pod_id=front.identity.peer_id, secret=front.identity.secret, memory=engine.pool, on_lost=_stream_lost
    )
    service = PrefillService(front, sender, clock=MonotonicClock(), wall=time.time)
    await front.run(service, on_ready)


def _stream_lost(peer_id: str, keys: tuple[ShipmentKey, ...]) -> None:
    """The decode pod hears of the same loss and fences; if it cannot, its link or its lease ends the shipment."""
