"""Streams over real TCP: the pod hears of who goes away, whenever that is, and who reads slowly fills no memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from fake_pod import FakePod, fingerprint
from raw_stream import PROMPT, read_whole, repeated, request, text_of
from router_rig import RunningRouter, StartRouter, eventually
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pagewire.core.load import Load
from pagewire.protos import inference_pb2 as pb
from pagewire.protos.inference_pb2_grpc import InferenceStub
from pagewire.router.inbox import Inbox

LONG = fingerprint(max_model_len=1 << 16)
Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Door = Callable[[RunningRouter], AsyncIterator[None]]  # asks, and goes away in the end


@contextlib.asynccontextmanager
async def wire(router: RunningRouter, receive_buffer: int = 0) -> AsyncIterator[Wire]:
    """Connect; the connection is reset in the end, as that of a client that died."""
    host, port = router.addresses["http"].removeprefix("http://").split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
        if receive_buffer:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=own, limit=1 << 12)
        yield reader, writer
        writer.transport.abort()


def write_buffers() -> list[int]:
    """Return how many bytes wait in this process for each client."""
    # By type: isinstance asks each object for its class, and one of torch warns of being asked.
    servers = [each for each in gc.get_objects() if issubclass(type(each), HttpToolsProtocol) and each.transport]
    return [each.transport.get_write_buffer_size() for each in servers]


def inbox_tokens() -> list[int]:
    """Return how many tokens wait in each inbox."""
    inboxes = [each for each in gc.get_objects() if type(each) is Inbox]
    return [sum(len(stream.tokens) for stream in inbox._streams.values()) for inbox in inboxes]


async def nothing_is_left(router: RunningRouter) -> None:
    async def rests() -> bool:
        return await router.metric("pagewire_router_requests_active") == 0

    await eventually(rests)
    for pod in router.pods:
        await pod.until(lambda pod=pod: pod.running == 0)
    gc.collect()
    assert inbox_tokens() == []


async def test_gone_while_its_body_is_read(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        async with wire(router) as (_, writer):
            writer.write(request()[:-5])
            await writer.drain()
            await router.http.get("/live")  # what was written before is read by now
        await nothing_is_left(router)
        assert pod.submits == []


async def by_http(router: RunningRouter) -> AsyncIterator[None]:
    async with wire(router) as (_, writer):
        writer.write(request())
        yield


async def by_grpc(router: RunningRouter) -> AsyncIterator[None]:
    call = router.rpc.Generate(pb.GenerateRequest(text=PROMPT))
    yield
    call.cancel()


@pytest.mark.parametrize("door", [by_http, by_grpc])
async def test_gone_while_no_pod_is_there(start: StartRouter, door: Door) -> None:
    async with start(placement_wait_s=30.0) as router:
        pod = await FakePod("c0").start()
        await router.registry.register(pod.registration)
        await router.has(1)
        await router.registry.unregister(pod.registration)
        await pod.die()
        await router.has(0)
        async with contextlib.asynccontextmanager(door)(router):

            async def waits() -> bool:
                return await router.metric("pagewire_router_requests_active") == 1

            await eventually(waits)
        await nothing_is_left(router)
        assert pod.submits == []
        assert await router.metric("pagewire_router_requests_total") == 1


@pytest.mark.parametrize("hold_at", [0, 1, 4, 7])
async def test_gone_while_it_is_answered(start: StartRouter, hold_at: int) -> None:
    pod = FakePod("c0")
    pod.hold_at = hold_at
    async with start(pod) as router:
        async with wire(router) as (reader, writer):
            writer.write(request())
            await pod.until(lambda: pod.submits)
            if hold_at:
                await asyncio.wait_for(reader.readuntil(b"data: "), 60)
        await pod.until(lambda: pod.cancels)
        assert [each.request_id for each in pod.cancels] == [each.spec.request_id for each in pod.submits]
        assert pod.cancels[0].reason == "client"
        await nothing_is_left(router)


@pytest.mark.parametrize("hold_at", [0, 1, 4, 7])
async def test_gone_by_grpc_while_it_is_answered(start: StartRouter, hold_at: int) -> None:
    pod = FakePod("c0")
    pod.hold_at = hold_at
    async with start(pod) as router:
        call = router.rpc.Generate(pb.GenerateRequest(text=PROMPT, sampling=pb.Sampling(max_tokens=8, ignore_eos=True)))
        await pod.until(lambda: pod.submits)
        if hold_at:
            assert (await call.read()).chunk.token_ids
        call.cancel()
        await pod.until(lambda: pod.cancels)
        assert [each.request_id for each in pod.cancels] == [each.spec.request_id for each in pod.submits]
        assert pod.cancels[0].reason == "client"
        await nothing_is_left(router)


async def test_gone_by_grpc_while_it_waits_for_room(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.load = Load(blocks_total=100, blocks_held=100, num_running=1)
    async with start(pod) as router:
        await router.has_heard()
        call = router.rpc.Generate(pb.GenerateRequest(text=PROMPT))

        async def waiting() -> float:
            return await router.metric("pagewire_router_requests_waiting")

        async def waits() -> bool:
            return await waiting() == 1

        await eventually(waits)
        call.cancel()
        await nothing_is_left(router)
        assert await waiting() == 0
        assert pod.submits == []


async def test_gone_at_the_last_token(start: StartRouter) -> None:
    # All is said: the pod may hear a cancel or none, but nothing may stay.
    pod = FakePod("c0")
    async with start(pod) as router:
        for _ in range(20):
            async with wire(router) as (reader, writer):
                writer.write(request())
                await asyncio.wait_for(reader.readuntil(b'"finish_reason":"length"'), 60)
        await nothing_is_left(router)


async def test_slow_readers_hold_nobody_up_and_fill_no_memory(start: StartRouter) -> None:
    pod = FakePod("c0", serves=LONG)
    count, length = 6, 6000  # more than buffers on the way take, however densely they are packed
    async with start(pod) as router, contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(wire(router, receive_buffer=4096)) for _ in range(count)]
        for _, writer in wires:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request(max_tokens=length))
        await pod.until(lambda: len(pod.submits) == count and pod.running == 0)  # it is through, they are not
        assert await router.metric("pagewire_router_requests_active") == count
        answer = await router.complete(ignore_eos=True)
        assert answer.json()["choices"][0]["text"] == repeated(8)
        buffered = write_buffers()
        assert sum(size > 0 for size in buffered) == count
        assert max(buffered) < HIGH_WATER_LIMIT + 1024  # one part may be begun below the limit
        # The rest is not text yet: token ids, no more than were asked for.
        held = inbox_tokens()
        assert len(held) == count
        assert all(0 < tokens < length for tokens in held)
        for reader, writer in wires:
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            said = await read_whole(reader)
            assert text_of(said) == repeated(length)
        await nothing_is_left(router)


async def test_who_reads_nothing_at_all_is_hung_up_on(start: StartRouter) -> None:
    pod = FakePod("c0", serves=LONG)
    pod.hold_at = 3999
    async with start(pod, stall_s=1.0) as router, wire(router, receive_buffer=4096) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(max_tokens=4000))
        await pod.until(lambda: pod.cancels)
        await nothing_is_left(router)


async def test_who_reads_slowly_is_not_hung_up_on_however_small_its_window(start: StartRouter) -> None:
    """What is taken counts, not whether the window ever opens for all that waits."""
    pod = FakePod("c0", serves=LONG)
    length = 2000
    async with start(pod, stall_s=3.0) as router:
        host, port = router.addresses["http"].removeprefix("http://").split(":")
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
            own.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(own, (host, int(port)))
            await loop.sock_sendall(own, request(max_tokens=length))
            said, began_s = b"", loop.time()
            while loop.time() - began_s < 7.0:  # a slice of it
                said += await asyncio.wait_for(loop.sock_recv(own, 512), 60)
                await asyncio.sleep(0.05)
            while b"[DONE]" not in said:
                data = await asyncio.wait_for(loop.sock_recv(own, 1 << 16), 60)
                assert data, "hung up on"
                said += data
        assert said.count(b'"text"') > 0
        await nothing_is_left(router)


@contextlib.asynccontextmanager
async def greedless(router: RunningRouter) -> AsyncIterator[Any]:
    """Connect by gRPC, which does not take in more than 64 KiB before it is read."""
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(router.addresses["grpc"], options=options) as channel:
        yield InferenceStub(channel)  # type: ignore[no-untyped-call]


async def test_slow_readers_by_grpc_fill_no_memory_either(start: StartRouter) -> None:
    pod = FakePod("c0", serves=LONG)
    count, length = 4, 20_000
    asked = pb.GenerateRequest(text=PROMPT, sampling=pb.Sampling(max_tokens=length, ignore_eos=True))
    async with start(pod) as router, greedless(router) as stub:
        calls = [stub.Generate(asked) for _ in range(count)]
        await pod.until(lambda: len(pod.submits) == count and pod.running == 0)
        answer = await router.complete(ignore_eos=True)
        assert answer.json()["choices"][0]["text"] == repeated(8)
        held = inbox_tokens()
        assert len(held) == count
        assert all(0 < tokens < length for tokens in held)
        for call in calls:
            said = "".join([part.chunk.text async for part in call])
            assert said == repeated(length)
        await nothing_is_left(router)


async def test_who_reads_nothing_by_grpc_is_given_up(start: StartRouter) -> None:
    pod = FakePod("c0", serves=LONG)
    pod.hold_at = 19_999
    asked = pb.GenerateRequest(text=PROMPT, sampling=pb.Sampling(max_tokens=20_000, ignore_eos=True))
    async with start(pod, stall_s=1.0) as router, greedless(router) as stub:
        call = stub.Generate(asked)
        await pod.until(lambda: pod.cancels)
        await nothing_is_left(router)
        with pytest.raises(grpc.aio.AioRpcError) as ended:  # once it reads, it is told
            [part async for part in call]
        assert ended.value.code() is grpc.StatusCode.CANCELLED
        assert ended.value.details() == "nothing of the answer was read for 1 s"
        # Whoever waits for a pod that says nothing is not taken for one who does not read.
        pod.hold_at = 4
        waits = stub.Generate(asked)
        await waits.read()
        await asyncio.sleep(1.5)
        assert not waits.done()
        waits.cancel()
        await nothing_is_left(router)


async def test_a_stream_over_an_older_http_ends_with_its_connection(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        url = router.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(request(max_tokens=40).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        async with asyncio.timeout(20):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        *said, last = body.removesuffix(b"\n\n").split(b"\n\n")
        assert last == b"data: [DONE]"
        texts = [json.loads(part.removeprefix(b"data: "))["choices"][0]["text"] for part in said]
        assert "".join(texts) == repeated(40)
        writer.close()
