"""Callers that send slowly, or without end: they are let go, and what they hold is bounded meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import raw_http2
from fake_pod import FakePod
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from router_rig import PATIENT_S, RunningRouter, StartRouter

from pagewire.protos import inference_pb2 as pb
from pagewire.router import http_protocol
from pagewire.router.config import RouterConfig
from pagewire.serving import request_reader

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n"
UPLOAD_S = 1.0


@contextlib.asynccontextmanager
async def connection(router: RunningRouter) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = router.addresses["http"].removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def trickle(writer: asyncio.StreamWriter, piece: bytes) -> None:
    """Send a piece now and again until nobody takes it."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("begins", "piece"),
    [
        (b"", b""),  # connects, and says nothing
        (b"", b"\r\n"),  # empty lines, which are no request's beginning
        (b"POST /v1/completions HTTP/1.1\r\n", b"x: y\r\n"),
        (b"GET /" + b"x" * 100, b"x"),
        (POST + b"\r\n", b"x"),
        (POST.replace(b"content-length: 1000", b"transfer-encoding: chunked") + b"\r\n", b"1\r\nx\r\n"),
    ],
    ids=["silence", "empty lines", "headers", "path", "body", "chunks"],
)
async def test_a_request_that_trickles_over_http_is_ended(start: StartRouter, begins: bytes, piece: bytes) -> None:
    pod = FakePod("c0")
    async with start(pod, upload_s=UPLOAD_S) as router, connection(router) as (reader, writer):
        writer.write(begins)
        sending = asyncio.create_task(trickle(writer, piece))
        try:
            async with asyncio.timeout(PATIENT_S):
                said = await reader.read()
        except ConnectionResetError:  # it went on sending when we had gone
            said = b"HTTP/1.1 408"
        finally:
            sending.cancel()
        assert said.startswith(b"HTTP/1.1 408"), said
        assert pod.submits == []
        assert (await router.complete()).status_code == 200
        assert await router.metric("pagewire_router_requests_active") == 0


async def test_a_connection_that_waits_between_requests_or_for_an_answer_is_not(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 4
    async with start(pod, upload_s=UPLOAD_S) as router, connection(router) as (reader, writer):
        body = b'{"prompt": "hello", "max_tokens": 8, "stream": true, "ignore_eos": true}'
        whole = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        writer.write(whole + whole[:40])  # the next one has begun already
        await pod.until(lambda: pod.running == 1)
        await asyncio.sleep(1.5 * UPLOAD_S)
        pod.hold_at = None
        pod.release()
        writer.write(whole[40:])
        said = b""
        async with asyncio.timeout(PATIENT_S):
            while said.count(b"data: [DONE]") < 2:
                part = await reader.read(1 << 16)
                assert part, said[-200:]
                said += part


@pytest.mark.parametrize(
    ("begins", "piece", "status"),
    [
        (b"GET /live HTTP/1.1\r\nx: ", b"y" * (1 << 16), b"431"),
        (b"GET /live HTTP/1.1\r\n", b"x: y\r\n" * 10_000, b"431"),
        (POST.replace(b"content-length: 1000", b"transfer-encoding: chunked") + b"\r\n", b"1\r\nx\r\n" * 20_000, b"4"),
    ],
    ids=["one header", "headers", "chunks"],
)
async def test_a_request_without_end_takes_no_memory(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, begins: bytes, piece: bytes, status: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_MESSAGE_BYTES", 1 << 20)
    async with start(FakePod("c0")) as router, connection(router) as (reader, writer):
        writer.write(begins)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        assert sent < 16 << 20  # beyond what sockets hold
        with contextlib.suppress(ConnectionResetError):
            assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
        assert (await router.http.get("/live")).status_code == 200


async def test_who_watches_health_and_takes_nothing_holds_up_nobody(start: StartRouter) -> None:
    """By a window of 0 bytes, which no client of gRPC's has: what is written to it never leaves."""
    service = "pagewire.v1.Inference"
    asked = HealthCheckRequest(service=service).SerializeToString()
    pod = FakePod("c0")
    async with start(pod) as router, grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
        host, port = router.addresses["grpc"].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw_http2.call("/grpc.health.v1.Health/Watch", asked, window=0))
        watch = HealthStub(channel).Watch(HealthCheckRequest(service=service))  # type: ignore[no-untyped-call]
        async with asyncio.timeout(PATIENT_S):
            assert (await watch.read()).status == HealthCheckResponse.SERVING
            await pod.die()
            assert (await watch.read()).status == HealthCheckResponse.NOT_SERVING
            await pod.start()
            assert (await watch.read()).status == HealthCheckResponse.SERVING
            router.lifecycle.drain("the test wants it")
            assert (await watch.read()).status == HealthCheckResponse.NOT_SERVING
        writer.close()


async def test_a_call_whose_request_does_not_come_over_grpc_is_ended(start: StartRouter) -> None:
    async with start(FakePod("c0"), upload_s=UPLOAD_S) as router:
        async with grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
            for method in ("Generate", "GetModelInfo", "Tokenize", "SubscribeKvEvents"):
                call: Any = channel.stream_stream(f"/pagewire.v1.Inference/{method}")()
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await call.read()
                assert ended.value.code() is grpc.StatusCode.CANCELLED
                assert ended.value.details() == f"the request had not come after {UPLOAD_S:g} s"
                empty: Any = channel.stream_stream(f"/pagewire.v1.Inference/{method}")()
                await empty.done_writing()
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await empty.read()
                assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await router.metric("pagewire_router_requests_active") == 0


async def test_calls_whose_requests_come_slowly_give_way_to_others(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more are read at once than there is memory for, and who sends none of theirs keeps nobody out."""
    monkeypatch.setattr(request_reader, "BRISK_S", 0.3)
    sizes = {"max_body_bytes": 1 << 20, "max_bodies_bytes": 2 << 20}
    async with (
        start(FakePod("c0"), **sizes) as router,
        grpc.aio.insecure_channel(router.addresses["grpc"]) as channel,
    ):
        slow: list[Any] = [channel.stream_stream("/pagewire.v1.Inference/Generate")() for _ in range(5)]
        ends = [asyncio.create_task(call.code()) for call in slow]
        async with asyncio.timeout(60):
            while sum(end.done() for end in ends) < len(ends) - 2:  # those two have room, and time while nobody waits
                assert (await router.rpc.GetModelInfo(pb.GetModelInfoRequest())).model == "fake"
        ended = [call for call in slow if call.done()]
        assert {await call.code() for call in ended} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert {await call.details() for call in ended} == {"the request comes slowly, and others wait to be read"}
        for call in slow:
            call.cancel()
        await asyncio.gather(*ends)


async def test_what_is_sent_to_a_call_that_reads_no_more_takes_no_memory(start: StartRouter) -> None:
    """Of a watch of health, for which nobody shows a key."""
    async with start(FakePod("c0")) as router, grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
        watch: Any = channel.stream_stream("/grpc.health.v1.Health/Watch")()
        await watch.write(HealthCheckRequest().SerializeToString())
        await watch.read()
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 4 << 20:
                async with asyncio.timeout(UPLOAD_S):
                    await watch.write(bytes(64 << 10))
                sent += 64 << 10
        assert sent <= 512 << 10
        watch.cancel()


async def test_who_connects_to_grpc_and_says_nothing_is_hung_up_on(start: StartRouter) -> None:
    async with start(FakePod("c0"), silence_s=1.0) as router:
        host, port = router.addresses["grpc"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(PATIENT_S):
            await reader.read()
        writer.close()


def test_a_bound_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="upload_s"):
        RouterConfig(model=("m",), cluster_secret="s", upload_s=0.0)


async def test_a_connection_that_rests_after_an_answer_is_told_nothing(start: StartRouter) -> None:
    """What came unasked would be taken for the answer to the next request."""
    async with start(FakePod("c0"), upload_s=0.2) as router, connection(router) as (reader, writer):
        writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        said = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5):  # uvicorn itself hangs up after five seconds
                while part := await reader.read(1 << 16):
                    said += part
        assert said.startswith(b"HTTP/1.1 200")
        assert said.count(b"HTTP/1.1") == 1
        writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(PATIENT_S):
            assert (await reader.read(1 << 16)).startswith(b"HTTP/1.1 200")
