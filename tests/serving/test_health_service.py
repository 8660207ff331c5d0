"""The standard health service: states as they come, bounds on who watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from pagewire.serving.health_service import HealthService

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN
PATIENT_S = 20.0


@contextlib.asynccontextmanager
async def running(health: HealthService) -> AsyncIterator[HealthStub]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((health.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(PATIENT_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield HealthStub(channel)  # type: ignore[no-untyped-call]
    await server.stop(0)


async def code_of(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call  # type: ignore[misc]
    return raised.value.code(), raised.value.details() or ""


async def test_a_service_is_what_was_said_of_it_last() -> None:
    health = HealthService()
    async with running(health) as stub:
        assert (await stub.Check(HealthCheckRequest())).status == NOT_SERVING
        assert (await code_of(stub.Check(HealthCheckRequest(service="a"))))[0] is grpc.StatusCode.NOT_FOUND
        health.set(True)
        health.set(True, "a")
        health.set(False, "b")
        assert (await stub.Check(HealthCheckRequest())).status == SERVING
        assert (await stub.Check(HealthCheckRequest(service="b"))).status == NOT_SERVING
        told = (await stub.List(HealthListRequest())).statuses
        assert {name: told[name].status for name in told} == {"": SERVING, "a": SERVING, "b": NOT_SERVING}
        health.close()
        health.set(True, "a")
        told = (await stub.List(HealthListRequest())).statuses
        assert {name: told[name].status for name in told} == {"": NOT_SERVING, "a": NOT_SERVING, "b": NOT_SERVING}


async def test_who_watches_hears_of_each_state_once_and_of_its_own_service_alone() -> None:
    health = HealthService()
    async with running(health) as stub:
        watch, other = (stub.Watch(HealthCheckRequest(service=name)) for name in ("a", "b"))
        assert (await watch.read()).status == UNKNOWN
        assert (await other.read()).status == UNKNOWN
        for is_serving, status in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
            health.set(is_serving, "a")
            health.set(is_serving, "a")
            assert (await watch.read()).status == status
        health.set(False, "b")
        assert (await other.read()).status == NOT_SERVING
        health.close()
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() is grpc.aio.EOF, "nobody who watches holds up the end"


async def test_so_many_watch_and_no_more_until_one_goes() -> None:
    health = HealthService(max_watchers=2)
    async with running(health) as stub:
        watches = [stub.Watch(HealthCheckRequest()) for _ in range(2)]
        for watch in watches:
            await watch.read()
        code, why = await code_of(stub.Watch(HealthCheckRequest()).read())
        assert (code, why) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "2 watch this process's health already")
        assert (await stub.Check(HealthCheckRequest())).status == NOT_SERVING
        watches[0].cancel()
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert (await stub.Watch(HealthCheckRequest()).read()).status == NOT_SERVING
                break
            await asyncio.sleep(0.01)


async def test_nobody_watches_for_longer_than_is_said() -> None:
    async with running(HealthService(max_watchers=1, watch_s=0.1)) as stub:
        for _ in range(2):
            watch = stub.Watch(HealthCheckRequest())
            assert (await watch.read()).status == NOT_SERVING
            code, why = await code_of(watch.read())
            assert (code, why) == (grpc.StatusCode.DEADLINE_EXCEEDED, "health is told for 0.1 s at a time: ask again")
