"""An OpenAI-compatible HTTP server in this process whose every token comes when a script says. It computes nothing.

Written on plain asyncio streams, so that what is measured is the client and not a web framework.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pagewire.core.listeners import accepted_last

HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came: its path, headers in lower case, and body; `send` writes an event of its stream."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    send: Callable[[Any], Awaitable[None]]
    writer: asyncio.StreamWriter

    async def token(self, number: int, **beside: Any) -> None:
        if "chat" in self.path:
            choice: dict[str, Any] = {"delta": {"content": f" t{number}"}}
        else:
            choice = {"text": f" t{number}"}
        if self.body.get("return_token_ids"):
            choice["token_ids"] = [number]
        await self.send({"choices": [{"index": 0, **choice}], **beside})

    async def end(self, **usage: Any) -> None:
        if usage:
            await self.send({"choices": [], "usage": usage})
        await self.send("[DONE]")


@dataclass(slots=True)
class StubServer:
    """`answer` is the script of a request; `asked` holds all that came, in order."""

    answer: Callable[[Asked], Awaitable[None]]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    now_running: int = 0
    most_running: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            if method == "GET":
                await self._models(writer)
                return
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            await self._stream(path, headers, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    async def _models(self, writer: asyncio.StreamWriter) -> None:
        said = json.dumps({"data": [{"id": "stub"}]})
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(said)}\r\nconnection: close\r\n\r\n{said}".encode())
        await writer.drain()

    async def _stream(self, path: str, headers: dict[str, str], body: Any, writer: asyncio.StreamWriter) -> None:
        async def send(event: Any) -> None:
            if not begun:
                begun.append(True)
                writer.write(HEAD.encode())
            said = event if isinstance(event, str) else json.dumps(event)
            writer.write(f"data: {said}\n\n".encode())
            await writer.drain()

        begun: list[bool] = []
        asked = Asked(path, headers, body, send, writer)
        self.asked.append(asked)
        self.now_running += 1
        self.most_running = max(self.most_running, self.now_running)
        try:
            await self.answer(asked)
        finally:
            self.now_running -= 1


@asynccontextmanager
async def serving(answer: Callable[[Asked], Awaitable[None]]) -> AsyncIterator[StubServer]:
    """Run a stub on a free port of the loopback."""
    stub = StubServer(answer)
    server = await asyncio.start_server(stub.handle, "127.0.0.1", 0)
    stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        try:
            yield stub
        finally:
            await accepted_last(server)
