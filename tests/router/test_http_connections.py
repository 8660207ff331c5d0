"""Connections of all kinds to the HTTP server, on real sockets: each ends, and each request hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import pytest
from pods import until
from starlette.requests import Request

from pagewire.core.errors import Cancelled
from pagewire.router.http_server import HttpServer, listen
from pagewire.router.streaming import unless_gone

HEAD = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n"


class Server:
    """An application that answers at once on `/early`, for ever later on `/slow`, and else with the body, in parts on
    `/parts`.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self.running = 0
        self.port = 0
        self.late_s = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b"" if scope["path"] == "/early" else await Request(scope, receive).body()
        self.seen.append((scope["path"], body))
        if scope["path"] == "/slow":
            self.running += 1
            with contextlib.suppress(Cancelled):
                async with unless_gone(receive):
                    await asyncio.sleep(600)
            self.running -= 1
        if scope["path"] == "/parts":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for place in range(len(body)):
                await send({"type": "http.response.body", "body": body[place : place + 1], "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        if scope["path"] == "/late":
            await asyncio.sleep(self.late_s)
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def served(idle_s: int = 5, **bounds: float) -> AsyncIterator[Server]:
    app, listener = Server(), listen("127.0.0.1", 0)
    server = HttpServer(app, None, **bounds)
    server.config.timeout_keep_alive = idle_s
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    app.port = listener.getsockname()[1]
    try:
        yield app
    finally:
        server.should_exit = server.force_exit = True
        await serving


@pytest.mark.parametrize("num_ahead", [0, 1, 2])
@pytest.mark.parametrize("is_abrupt", [False, True])
async def test_who_goes_away_cancels_what_runs_however_much_it_asked_ahead(num_ahead: int, is_abrupt: bool) -> None:
    async with served(upload_s=2.0, stall_s=1.0) as app:
        _, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(HEAD % (b"/slow", 2, b"") + b"{}")
        await until(lambda: app.running == 1)
        writer.write((HEAD % (b"/slow", 2, b"") + b"{}") * num_ahead)
        await writer.drain()
        await asyncio.sleep(0.1)
        if is_abrupt:
            writer.transport.abort()
        else:
            writer.close()
        await until(lambda: app.running == 0)
        assert len(app.seen) == 1  # nobody is there to be answered


@pytest.mark.parametrize("path", [b"/", b"/parts"])
@pytest.mark.parametrize("method", [b"POST", b"HEAD"])
async def test_who_knows_no_chunks_gets_none(path: bytes, method: bytes) -> None:
    async with served() as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        head = (HEAD % (path, 4, b"connection: keep-alive\r\n")).replace(b"HTTP/1.1", b"HTTP/1.0")
        writer.write(head.replace(b"POST", method) + b"abcd")
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")  # up to its end
        told = head.lower().split(b"\r\n")
        assert told[0].endswith(b"200 ok")
        assert b"connection: close" in told
        assert (b"content-length: 4" in told) == (path == b"/")
        assert not any(line.startswith(b"transfer-encoding") for line in told)
        assert body == (b"" if method == b"HEAD" else b"abcd")
        writer.close()


@pytest.mark.parametrize("path", [b"/", b"/early"])
async def test_an_idle_connection_ends_though_it_was_answered_early(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    async with served(upload_s=60.0, stall_s=60.0) as app:
        begun_s = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(HEAD % (path, 4, b""))
        await asyncio.sleep(0.1)
        writer.write(b"abcd")
        async with asyncio.timeout(30):
            answer = await reader.read()  # up to its end
        assert answer.startswith(b"HTTP/1.1 200")
        assert time.monotonic() - begun_s > 1  # it was kept for a while
        writer.close()


async def test_what_comes_with_the_end_of_a_request_that_was_answered_early_is_answered_whole() -> None:
    async with served(idle_s=1) as app:
        app.late_s = 2.0
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(HEAD % (b"/early", 4, b""))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"abcd" + HEAD % (b"/late", 4, b"connection: close\r\n") + b"efgh")
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert answer.endswith(b"efgh")
        writer.close()


async def test_nothing_is_written_into_an_answer_by_what_comes_behind_its_request() -> None:
    async with served() as app:
        app.late_s = 3.0
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(HEAD % (b"/late", 4, b"") + b"abcd")
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupg")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(b"rade: h2c\r\ncontent-length: 4\r\n\r\nabcd")
        async with asyncio.timeout(20):
            answer += await reader.read()
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()


UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
INNER = b"GET /inner HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("headers", [UPGRADE, UPGRADE.title(), UPGRADE.replace(b"upgrade:", b"upgrade \t:")])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_wish_for_another_protocol_is_passed_over(headers: bytes, apart: bool) -> None:
    async with served() as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(HEAD % (b"/a", len(INNER), headers))
        if apart:
            await asyncio.sleep(0.1)
        writer.write(INNER + HEAD % (b"/b", 1, b"connection: close\r\n") + b"b")
        async with asyncio.timeout(20):
            answer = await reader.read()
        if b" \t:" in headers:  # such a name is none
            assert app.seen == []
            assert answer.startswith(b"HTTP/1.1 400")
        else:
            assert app.seen == [("/a", INNER), ("/b", b"b")]
            assert INNER in answer
        writer.close()


async def test_no_body_is_another_request_wherever_a_head_is_cut() -> None:
    head = HEAD % (b"/a", len(INNER), UPGRADE)
    async with served() as app:
        for cut in range(1, len(head)):
            reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
            writer.write(head[:cut])
            await asyncio.sleep(0.002)
            writer.write(head[cut:] + INNER + HEAD % (b"/b", 1, b"connection: close\r\n") + b"b")
            async with asyncio.timeout(20):
                answer = await reader.read()
            is_whole = answer.startswith(b"HTTP/1.1 200")
            assert is_whole or answer.startswith(b"HTTP/1.1 400"), cut
            assert [path for path, _ in app.seen] == (["/a", "/b"] if is_whole else ["/a"] * len(app.seen)), cut
            app.seen.clear()
            writer.close()


STANDING_STILL = """
import asyncio, sys, uvloop
from pagewire.router.http_server import HttpServer, listen

async def app(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})

async def serve():
    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, None)
    server.config.timeout_keep_alive = 1
    print(listener.getsockname()[1], flush=True)
    await server.serve(sockets=[listener])

uvloop.run(serve())
"""


def answered(answers: BinaryIO) -> bool:
    """Read an answer of two bytes; return whether it is one."""
    head = list(iter(answers.readline, b"\r\n"))
    return head[0].startswith(b"HTTP/1.1 200 ") and answers.read(2) == b"{}"


def test_a_request_to_a_process_that_stood_still_is_answered() -> None:
    """It finds its timers due and requests unread: what is not read yet is no idleness."""
    command = [sys.executable, "-P", "-c", STANDING_STILL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            request = HEAD % (b"/", 2, b"") + b"{}"
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                answers = connection.makefile("rb")
                connection.sendall(request)
                assert answered(answers)
                server.send_signal(signal.SIGSTOP)
                time.sleep(0.3)
                connection.sendall(request)
                time.sleep(1.5)
                server.send_signal(signal.SIGCONT)
                assert answered(answers)
                assert not answers.read(), "one that is idle ends"
        finally:
            server.kill()
