"""Constructs a decode pod, or a colocated one, and runs it."""

from __future__ import annotations

from pagewire.core.clock import MonotonicClock
from pagewire.core.messages import Role
from pagewire.decode_service.service import DecodeService
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.engine.front import Front, Ready
from pagewire.serving import logs
from pagewire.serving.pod_config import PodConfig


async def run(config: PodConfig, on_ready: Ready) -> None:
    """Serve until SIGTERM, then drain. Raises ValueError on a bad configuration, EngineFailed when the engine dies."""
    logs.configure(config.pod_id or config.role.value, config.log_level)
    engine = await EngineClient.start(EngineConfig.of(config))
    transports = ("grpc",) if config.role is Role.DECODE else ()
    front = Front(config, config.role, engine, transports)
    await front.run(DecodeService(front, clock=MonotonicClock()), on_ready)
