"""A whole router in this process, with real ports and a real Valkey, before fake pods."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from fake_pod import SECRET, FakePod, fake_pods

from pagewire.core.clock import MonotonicClock
from pagewire.protos import inference_pb2 as pb
from pagewire.protos.inference_pb2_grpc import InferenceStub
from pagewire.router.config import RouterConfig
from pagewire.router.main import run
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.lifecycle import Lifecycle
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registry import Registry
from pagewire.serving.tls import CLEAR, Tls, Wire

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
PATIENT_S = 60.0  # how long a test waits for what has to come: so that it ends where it never does


@dataclass(slots=True, kw_only=True)
class RunningRouter:
    """A router that runs, and the clients of its two doors."""

    pods: tuple[FakePod, ...]
    addresses: Mapping[str, str]
    http: httpx.AsyncClient
    rpc: Any
    registry: Registry
    index: BlockIndex
    lifecycle: Lifecycle
    task: asyncio.Task[None]
    cluster: str
    stack: contextlib.AsyncExitStack = field(repr=False)

    async def complete(self, prompt: object = "hello world", **fields: object) -> httpx.Response:
        """POST /v1/completions."""
        body = {"prompt": prompt, "max_tokens": 8, **fields}
        return await self.http.post("/v1/completions", json=body)

    async def metric(self, name: str) -> float:
        """Return the value of one sample of /metrics."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    async def has(self, pods: int) -> None:
        """Wait until that many pods are usable."""
        await eventually(lambda: self._has(pods))

    async def _has(self, pods: int) -> bool:
        return await self.metric("pagewire_router_pods") == pods

    async def has_heard(self, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Wait until the router knows of each pod the blocks that it reports now; with keys, `headers` hold one's."""
        await eventually(lambda: self._has_heard(headers))

    async def _has_heard(self, headers: Mapping[str, str]) -> bool:
        answer = await self.rpc.GetLoads(pb.GetLoadsRequest(), metadata=tuple(headers.items()))
        told = {each.pod_id: each.load for each in answer.pods}
        loads = [(told[pod.pod_id], pod.load) for pod in self.pods]
        return all(
            (heard.blocks_total, heard.blocks_free) == (said.blocks_total, said.blocks_free) for heard, said in loads
        )


def events(text: str) -> list[Any]:
    """Return what a stream of server-sent events says; the last one must be the end."""
    parts = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until an async condition holds."""
    async with asyncio.timeout(PATIENT_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def leap(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clocks of this process ahead, not the event loop's: what routers reckon to take so long is over."""
    now = MonotonicClock.now
    monkeypatch.setattr(MonotonicClock, "now", lambda clock: now(clock) + seconds)


StartRouter = Callable[..., contextlib.AbstractAsyncContextManager[RunningRouter]]


@contextlib.asynccontextmanager
async def running_router(
    redis: str,
    folder: Path,
    *pods: FakePod,
    misfits: tuple[FakePod, ...] = (),
    headers: Mapping[str, str] | None = None,
    tls: Tls | None = None,
    cluster: str = "",
    sees: int = 0,
    **settings: Any,
) -> AsyncIterator[RunningRouter]:
    """Start pods and a router on free ports before them; see that all are gone afterwards.

    All pods are registered before the router starts, and it is awaited that `pods` are usable, not the `misfits`. In a
    `cluster` that another router runs before, `sees` of its pods are awaited besides. `tls` is what the clients show
    and believe.
    """
    cluster = cluster or uuid.uuid4().hex
    config = RouterConfig(
        cluster_secret=SECRET.decode(),
        cluster=cluster,
        redis_url=redis,
        port=0,
        grpc_port=0,
        **{
            "model": (str(folder),),
            "discovery_s": 0.05,
            "index_timeout_s": 1.0,
            "drain_s": 5.0,
            "max_wait_s": PATIENT_S,
            **settings,
        },
    )
    lifecycle = Lifecycle()
    ready: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
    async with contextlib.AsyncExitStack() as stack:
        address = RedisAddress.parse(redis, config.redis_ca, cert=config.redis_cert, key=config.redis_key)
        registry, index = Registry(address, cluster), BlockIndex(address, cluster, timeout_s=1.0)
        stack.push_async_callback(registry.aclose)
        stack.push_async_callback(index.aclose)
        await stack.enter_async_context(fake_pods(*pods, *misfits))
        for pod in (*pods, *misfits):
            await registry.register(pod.registration)
        task = asyncio.create_task(run(config, on_ready=ready.set_result, lifecycle=lifecycle))
        stack.push_async_callback(_stop, task, lifecycle)
        await asyncio.wait_for(asyncio.shield(ready), PATIENT_S)
        addresses = ready.result()
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=addresses["http"],
                headers=headers,
                trust_env=False,
                timeout=PATIENT_S,
                verify=client_context(tls),
            )
        )
        wire = Wire(tls) if tls is not None else CLEAR
        channel = await stack.enter_async_context(wire.channel(addresses["grpc"], ()))
        rpc = InferenceStub(channel)  # type: ignore[no-untyped-call]
        router = RunningRouter(
            pods=pods, addresses=addresses, http=http, rpc=rpc, registry=registry, index=index,
            lifecycle=lifecycle, task=task, cluster=cluster, stack=stack,
        )  # fmt: skip
        await router.has(len(pods) + sees)
        yield router


def client_context(tls: Tls | None) -> ssl.SSLContext | bool:
    """Return how httpx is to check a server, and what to show to it."""
    if tls is None:
        return True
    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    return context


async def _stop(task: asyncio.Task[None], lifecycle: Lifecycle) -> None:
    lifecycle.drain("the test is over")
    await asyncio.wait_for(task, PATIENT_S)
