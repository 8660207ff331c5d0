"""Constructs a prefill pod and runs it."""

from __future__ import annotations

import time

from pagewire.core.clock import MonotonicClock
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.engine.exchange.exchange import block_sender
from pagewire.engine.front import Front, Ready
from pagewire.kvtransfer.transports.offered import offered
from pagewire.prefill_service.service import PrefillService
from pagewire.serving import logs
from pagewire.serving.pod_config import PodConfig


async def run(config: PodConfig, on_ready: Ready) -> None:
    """Serve until SIGTERM, then drain. Raises ValueError on a bad configuration, EngineFailed when the engine dies."""
    logs.configure(config.pod_id or config.role.value, config.log_level)
    offers = offered(config.transports, config.shm_dir, config.host, config.device)
    engine = await EngineClient.start(EngineConfig.of(config))
    front = Front(config, config.role, engine, offers)
    service = PrefillService(front, sender=block_sender(front), clock=MonotonicClock(), wall=time.time)
    await front.run(service, on_ready)
