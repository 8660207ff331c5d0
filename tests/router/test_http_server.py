"""The HTTP server leaves nobody hanging, whenever it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from pagewire.router.http_server import HttpServer, listen


async def no_app(_scope: object, _receive: object, _send: object) -> None:
    raise AssertionError("nobody asks")


@pytest.mark.parametrize("num_turns", range(16))
async def test_who_connects_as_it_stops_is_hung_up_on(num_turns: int) -> None:
    """A connection takes turns of the loop from the kernel to uvicorn: the end may come in any of them."""
    server, listener = HttpServer(no_app, None), listen("127.0.0.1", 0)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup([listener])
    with socket.create_connection(listener.getsockname(), timeout=10) as caller:
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await server.shutdown([listener])
        with contextlib.suppress(ConnectionResetError):  # the kernel had it still
            assert await asyncio.to_thread(caller.recv, 1) == b""
