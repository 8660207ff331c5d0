"""What the frames of a link go over: pieces, batches, ends, a peer that does not read.

Real sockets, on both event loops; gRPC's stream is played where it is to count or to break.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
import uvloop

from pagewire.serving.line import CLOSED, MAX_BATCH_BYTES, MAX_FRAME_BYTES, LinkSocket, LinkStream

MESSAGES = [b"", b"x", b"y" * 70_000, b"", b"z" * 3_000_000, *(bytes([number]) * number for number in range(200))]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run(test: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None) as runner:
            runner.run(bounded())

    return run


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs


async def a_pair() -> tuple[LinkSocket, LinkSocket]:
    ours, theirs = connected()
    return await LinkSocket.over(ours), await LinkSocket.over(theirs)


class Heard(list[bytes]):
    """What came, and a wait for more."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def take(self, data: bytes) -> None:
        self.append(data)
        self._changed.set()

    async def until(self, count: int) -> None:
        while len(self) < count:
            self._changed.clear()
            await self._changed.wait()


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


def test_all_comes_once_and_in_order_both_ways(run: Callable[..., None]) -> None:
    async def test() -> None:
        lines = await a_pair()
        heard = (Heard(), Heard())
        carrying = [asyncio.create_task(line.carry(heard[number].take)) for number, line in enumerate(lines)]
        for message in MESSAGES:
            for line in lines:
                line.send(message)
        for each in heard:
            await each.until(len(MESSAGES))
            assert each == MESSAGES
        lines[0].close()
        assert await carrying[1] == CLOSED
        assert await carrying[0] == "it was closed here"

    run(test)


@pytest.mark.parametrize("size", [1, 3, 5, 4096])
def test_pieces_of_any_size_make_the_messages(run: Callable[..., None], size: int) -> None:
    messages = MESSAGES[5:60] if size < 4096 else MESSAGES

    async def test() -> None:
        ours, theirs = connected()
        line = await LinkSocket.over(ours)
        stream = b"".join(map(framed, messages))
        theirs.setblocking(False)
        heard: list[bytes] = []
        carrying = asyncio.create_task(line.carry(heard.append))
        for at in range(0, len(stream), size):
            await asyncio.get_running_loop().sock_sendall(theirs, stream[at : at + size])
            await asyncio.sleep(0)
        theirs.close()
        assert await carrying == CLOSED
        assert heard == messages

    run(test)


def test_what_came_before_somebody_listens_waits(run: Callable[..., None]) -> None:
    async def test() -> None:
        ours, theirs = await a_pair()
        for number in range(50):
            theirs.send(bytes([number]))
        await asyncio.sleep(0.05)
        heard = Heard()
        carrying = asyncio.create_task(ours.carry(heard.take))
        await heard.until(50)
        assert heard == [bytes([number]) for number in range(50)]
        theirs.close()
        assert await carrying == CLOSED

    run(test)


def test_what_was_sent_before_the_end_arrives_though_the_other_end_talks_on(run: Callable[..., None]) -> None:
    async def test() -> None:
        for _ in range(20):
            ours, theirs = await a_pair()
            heard = Heard()
            listening = asyncio.create_task(theirs.carry(heard.take))
            carrying = asyncio.create_task(ours.carry(lambda _: None))
            await asyncio.sleep(0)
            for _ in range(100):
                theirs.send(b"talk" * 1000)
                ours.send(b"last" * 1000)
            finishing = asyncio.create_task(ours.finish())
            await asyncio.sleep(0)
            ours.send(b"too late")
            theirs.send(b"talk" * 1000)
            assert await listening == CLOSED
            assert heard == [b"last" * 1000] * 100
            await finishing
            assert await carrying == CLOSED

    run(test)


def test_a_length_that_no_message_has_ends_the_line(run: Callable[..., None]) -> None:
    async def test() -> None:
        ours, theirs = connected()
        line = await LinkSocket.over(ours)
        theirs.sendall(framed(b"good") + (MAX_FRAME_BYTES + 1).to_bytes(4, "little") + b"GET / HTTP/1.1")
        heard: list[bytes] = []
        assert f"{MAX_FRAME_BYTES + 1} bytes" in await line.carry(heard.append)
        assert heard == [b"good"]
        line.close()
        assert await asyncio.to_thread(theirs.recv, 1) == b"", "we hung up"
        theirs.close()

    run(test)


def test_a_reset_and_an_end_within_a_message_are_ends(run: Callable[..., None]) -> None:
    async def test() -> None:
        for is_reset in (False, True):
            ours, theirs = connected()
            line = await LinkSocket.over(ours)
            theirs.sendall(framed(b"whole") + framed(b"a half")[:6])
            heard = Heard()
            carrying = asyncio.create_task(line.carry(heard.take))
            await heard.until(1)
            if is_reset:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            theirs.close()
            reason = await carrying
            assert ("ConnectionResetError" in reason) if is_reset else reason == CLOSED
            assert heard == [b"whole"]
            line.send(b"into the void")
            await line.finish()

    run(test)


def test_a_peer_that_does_not_read_shows_in_what_is_unsent_and_holds_nobody_up(run: Callable[..., None]) -> None:
    async def test() -> None:
        ours, theirs = connected()
        line = await LinkSocket.over(ours)
        carrying = asyncio.create_task(line.carry(lambda _: None))
        await asyncio.sleep(0)
        for _ in range(32):
            line.send(bytes(1 << 20))
        await asyncio.sleep(0.05)
        assert line.unsent_bytes > 8 << 20
        finishing = asyncio.create_task(line.finish())
        await asyncio.sleep(0.05)
        assert not finishing.done()
        got = 0
        theirs.setblocking(False)
        while got < 32 * ((1 << 20) + 4):
            got += len(await asyncio.get_running_loop().sock_recv(theirs, 1 << 20))
        assert line.unsent_bytes == 0
        theirs.close()
        await finishing
        assert await carrying == CLOSED

    run(test)


class _Counted:
    """One end of a gRPC stream, of which nothing comes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def read(self) -> Any:
        await asyncio.sleep(60)

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        self.written.append(data)


async def test_what_is_queued_at_once_is_few_messages_of_grpc_of_bounded_size() -> None:
    stream = _Counted()
    line = LinkStream(stream)
    carrying = asyncio.create_task(line.carry(lambda _: None))
    frames = [bytes([number]) * (MAX_BATCH_BYTES * 2 if number == 50 else 20_000) for number in range(200)]
    for frame in frames:
        line.send(frame)
    assert line.unsent_bytes == sum(map(len, frames))
    await line.finish()
    assert b"".join(stream.written) == b"".join(frames)
    sizes = sorted(map(len, stream.written))
    assert sizes[-1] == MAX_BATCH_BYTES * 2
    assert sizes[-2] <= MAX_BATCH_BYTES
    assert len(sizes) < 20
    assert line.unsent_bytes == 0
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)


async def test_a_stream_that_breaks_while_it_is_written_ends_the_line_and_whoever_waits_for_it() -> None:
    class Broken(_Counted):
        async def write(self, data: bytes) -> None:
            raise grpc.aio.UsageError("the call is over")

    line = LinkStream(Broken())
    line.send(b"x")
    assert "the call is over" in await line.carry(lambda _: None)
    await line.finish()
