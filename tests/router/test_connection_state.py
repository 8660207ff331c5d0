"""What the kernel says of a connection, on sockets of both kinds of loop."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import cast

import pytest
import uvloop

from pagewire.router.connection_state import num_taken, num_waiting, since_received_s


class Listener(asyncio.Protocol):
    """Says of what came how long it had been here."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[bytes, float]] = asyncio.Queue()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.heard.put_nowait((data, since_received_s(self.transport)))


async def speak() -> None:
    listener = Listener()
    server = await asyncio.get_running_loop().create_server(lambda: listener, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as caller:
        caller.sendall(b"early")
        time.sleep(0.2)  # the loop has others to look after  # noqa: ASYNC251
        early, early_s = await listener.heard.get()
        caller.sendall(b"now")
        now, now_s = await listener.heard.get()
        assert (early, now) == (b"early", b"now")
        assert 0.19 <= early_s < 10.0
        assert now_s < early_s
        assert listener.transport is not None
        listener.transport.write(b"x" * 1000)
        assert caller.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
        async with asyncio.timeout(10.0):
            while num_waiting(listener.transport):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert num_taken(listener.transport) == 1000
    server.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_kernel_says_how_long_something_has_been_here_and_what_was_taken(
    loop: type[asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(speak())
