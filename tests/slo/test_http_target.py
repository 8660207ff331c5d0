"""A server's streams as `slo run` reads them, on real sockets: what is kept from one request to the next."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pagewire.slo.load.ask import Ask, AskFailed
from pagewire.slo.load.http_target import HttpTarget

PART = {"choices": [{"index": 0, "text": "a", "token_ids": [5]}]}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Server:
    """Answers each request with one token; `done` is said at the end of it, and behind `end` that of the body where it
    `ends`.
    """

    def __init__(self) -> None:
        self.num_connections = 0
        self.done = b"data: [DONE]\n\n"
        self.end: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0.01)
        self.ends = True
        self.tasks: list[asyncio.Task[None]] = []

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.tasks.append(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                told = b"data: " + json.dumps(PART).encode() + b"\n\n" + self.done
                writer.write(HEAD + b"%x\r\n%b\r\n" % (len(told), told))
                await writer.drain()
                await self.end()
                if self.ends:
                    writer.write(b"0\r\n\r\n")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, HttpTarget]]:
    server = Server()
    listener = await asyncio.start_server(server.take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener, HttpTarget(url, now=time.monotonic, model="m") as target:
        yield server, target
    await asyncio.gather(*server.tasks)


async def tokens(target: HttpTarget) -> list[int]:
    ask = Ask(prompt="a", max_tokens=1, request_id="r")
    return [token for part in [part async for part in target.call(ask)] for token in part.token_ids]


async def test_requests_that_follow_one_another_go_by_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one for each would be in every time to the first token."""
    monkeypatch.setattr("pagewire.slo.load.http_target.SOON_S", 60.0)
    async with serving() as (server, target):
        for _ in range(5):
            assert await tokens(target) == [5]
        assert server.num_connections == 1
        await asyncio.gather(*(tokens(target) for _ in range(3)))
        assert server.num_connections == 3


async def test_nobody_waits_for_a_body_that_is_kept_open_and_its_connection_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first body ends when the second request has come: who waits for the one does not send the other."""
    monkeypatch.setattr("pagewire.slo.load.http_target.REST_S", 60.0)
    async with asyncio.timeout(30), serving() as (server, target):
        second = asyncio.Event()
        server.end = second.wait
        assert await tokens(target) == [5]
        second.set()
        assert await tokens(target) == [5]
        assert server.num_connections == 2
        await asyncio.gather(*target._rests)
        await asyncio.gather(tokens(target), tokens(target))
        assert server.num_connections == 2


async def test_a_body_that_does_not_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagewire.slo.load.http_target.REST_S", 0.05)
    async with serving() as (server, target):
        server.ends = False
        assert await tokens(target) == [5]
        assert await tokens(target) == [5]
        assert server.num_connections == 2
        await asyncio.wait_for(asyncio.gather(*server.tasks), 30)  # the server sees its connections end


async def test_bodies_that_do_not_end_are_closed_with_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagewire.slo.load.http_target.REST_S", 60.0)
    before = asyncio.all_tasks()
    async with asyncio.timeout(30), serving() as (server, target):
        server.ends = False
        await asyncio.gather(*(tokens(target) for _ in range(3)))
        assert len(target._rests) == 3
    assert not target._rests
    assert asyncio.all_tasks() == before


async def test_a_stream_that_ends_early_is_a_failure() -> None:
    async with serving() as (server, target):
        server.done = b""
        with pytest.raises(AskFailed, match=r"without \[DONE\]"):
            await tokens(target)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"usage": {"completion_tokens": "4"}}, "completion_tokens of the usage is no count: '4'"),
        ({"usage": {"prompt_tokens": -3}}, "prompt_tokens"),
        ({"usage": {"completion_tokens": 4.0}}, "4.0"),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": True}}}, "cached_tokens"),
        ({"choices": [{"text": "a", "finish_reason": "abort"}]}, "given up: finish_reason abort"),
        ({"choices": [{"text": "", "finish_reason": "error"}]}, "given up"),
    ],
)
async def test_what_no_answer_says_that_came_to_its_end_is_a_failure(more: dict[str, object], said: str) -> None:
    async with serving() as (server, target):
        server.done = b"data: " + json.dumps({**PART, **more}).encode() + b"\n\n" + server.done
        with pytest.raises(AskFailed, match=said):
            await tokens(target)


def test_what_is_no_url_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"'http://\[::1' is no URL"):
        HttpTarget("http://[::1", now=time.monotonic)


@pytest.mark.parametrize("key", ["hush\r", "hush ", "hüsh"])
def test_what_no_header_can_hold_is_no_key_and_is_not_told(key: str) -> None:
    with pytest.raises(ValueError, match="an API key is printable ASCII") as caught:
        HttpTarget("http://127.0.0.1:1", now=time.monotonic, api_key=key)
    assert key.strip() not in str(caught.value)
