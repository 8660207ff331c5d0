"""A pod's whole life around a real engine and a service that records: readiness, drain, a dead engine, a taken port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from engine_runs import engine
from grpc_health.v1 import health_pb2, health_pb2_grpc
from recording_service import Recorder
from threaded_engine import ThreadedEngine

from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.engine.front import Front
from pagewire.kvtransfer.transports.offered import offered
from pagewire.serving.pod_config import PodConfig

TinyModel = Callable[[str], Path]
NO_REDIS = "redis://127.0.0.1:1/0"


def front_of(model: Path, **settings: Any) -> Front:
    config = PodConfig(model=str(model), role=Role.COLOCATED, cluster_secret="a secret", redis_url=NO_REDIS, **settings)
    return Front(config, Role.COLOCATED, ThreadedEngine(engine(model)), offered("grpc"))


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return int(answer.status)


async def start(front: Front, service: Recorder) -> tuple[asyncio.Task[None], str]:
    ready: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(front.run(service, ready.set_result))
    return running, str((await ready)["grpc"])


async def test_it_serves_without_redis_and_drains_before_it_ends(tiny: TinyModel) -> None:
    front, service = front_of(tiny("llama")), Recorder()
    running, address = await start(front, service)
    assert await health(address) == health_pb2.HealthCheckResponse.SERVING
    assert not front.load().draining
    front.lifecycle.drain("the test says so")
    while "asked to drain" not in service.said:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert await health(address) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert front.load().draining
    assert not running.done()
    service.settled.set()
    await running
    assert service.said == ["asked to drain", "closed"]
    assert front.engine.exited.is_set()


async def test_a_dead_engine_is_told_admits_nothing_and_ends_the_pod(tiny: TinyModel) -> None:
    front, service = front_of(tiny("llama")), Recorder()
    running, _ = await start(front, service)
    assert isinstance(front.engine, ThreadedEngine)
    front.engine.die()
    with pytest.raises(EngineFailed, match="died"):
        await running
    assert service.said == ["the engine process died", "closed"]
    assert not front.lifecycle.is_ready


@pytest.mark.parametrize("setting", ["port", "metrics_port"])
async def test_a_taken_port_ends_everything_that_was_begun(tiny: TinyModel, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        front, service = front_of(tiny("llama"), **{setting: taken.getsockname()[1]}), Recorder()
        with pytest.raises(OSError, match=r"listen|in use"):
            await front.run(service, lambda said: None)
    assert service.said == ["closed"]
    assert front.engine.exited.is_set()
