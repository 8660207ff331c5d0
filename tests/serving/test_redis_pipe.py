"""A connection to Redis that is closed while somebody waits for it: an outage, and nobody's cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.redis_pipe import RedisPipe, encoded


@contextlib.contextmanager
def hole() -> Iterator[int]:
    """A port whose connections are neither made nor refused, as those to a host that drops packets."""
    with contextlib.ExitStack() as ends:
        listening = ends.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port: int = listening.getsockname()[1]
        for _ in range(4):  # so many fill its queue
            other = ends.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(("127.0.0.1", port))
        yield port


@pytest.mark.parametrize("greets", [False, True])
async def test_who_waits_for_a_connection_that_is_given_up_hears_of_an_outage(greets: bool) -> None:
    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await _reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        with hole() as port:
            if greets:
                port = server.sockets[0].getsockname()[1]
            pipe = RedisPipe(RedisAddress.parse(f"redis://:secret@127.0.0.1:{port}"), "127.0.0.1", port)
            asking = [asyncio.create_task(pipe.ask(encoded(b"PING"), 1, 60)) for _ in range(2)]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in asking)
            pipe.close()
            for task in asking:
                with pytest.raises(ConnectionError):
                    await task
