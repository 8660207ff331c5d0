"""Many streamed chat completions at once from one event loop, and when each of their tokens came.

Knows HTTP/1.1 and server-sent events. While streams run it only keeps bytes and moments; what they say is read when all
is over, so that the client costs a stream one read and one stamp for each part that the kernel hands over. The clock is
CLOCK_MONOTONIC, as in `paced_answers.py`. Connections are kept and used again.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast
from urllib.parse import urlsplit

LAST = b"0\r\n\r\n"
TIMEOUT_S = 60.0


@dataclass(slots=True)
class Stream:
    """One request: when it was sent, and the parts that came back with their moments."""

    number: int
    sent_s: float
    parts: list[tuple[float, bytes]] = field(default_factory=list)

    def token_times_s(self, texts: Sequence[str]) -> list[float]:
        """Return when each token was here, whose texts repeat `texts`. Raises RuntimeError where it is another answer.

        A token is here when the last byte of its event is.
        """
        ends = list(accumulate(len(part) for _, part in self.parts))
        data = b"".join(part for _, part in self.parts)
        if not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"request {self.number} was answered {data[:500]!r}")
        found: list[float] = []
        text, whole = "", ""
        for said, end in _events(data):
            for choice in said.get("choices", ()):
                text += choice["delta"].get("content") or ""
            while len(whole) < len(text):
                whole += texts[len(found) % len(texts)]
                found.append(self.parts[bisect.bisect_left(ends, end)][0])
        if whole != text:
            raise RuntimeError(f"request {self.number} was answered {text!r}")
        return found


def _events(data: bytes) -> list[tuple[dict[str, list[dict[str, dict[str, str]]]], int]]:
    """Return the JSON of each event and where its last byte ends, whatever chunks the bytes were sent in."""
    at = data.index(b"\r\n\r\n") + 4
    payload = bytearray()
    borders: list[tuple[int, int]] = []  # (length of the payload, offset in the data) after each chunk
    while True:
        line_end = data.index(b"\r\n", at)
        size = int(data[at:line_end], 16)
        if size == 0:
            break
        at = line_end + 2 + size
        payload += data[at - size : at]
        borders.append((len(payload), at))
        at += 2
    found, start = [], 0
    lengths = [length for length, _ in borders]
    while (end := payload.find(b"\n\n", start)) >= 0:
        length, offset = borders[bisect.bisect_left(lengths, end + 2)]
        event = payload[start:end]
        if event.startswith(b"data: {"):
            found.append((json.loads(event[6:]), offset - (length - end - 2)))
        start = end + 2
    return found


class StreamClient:
    """Connections to one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._idle: list[_Connection] = []

    async def open(self, count: int) -> None:
        """Have `count` connections ready."""
        loop = asyncio.get_running_loop()
        self._idle = [each for each in self._idle if not each.is_closed]  # servers hang up on idle ones
        while len(self._idle) < count:
            _, connection = await loop.create_connection(_Connection, self._host, self._port)
            self._idle.append(connection)

    async def stream(self, number: int, prompt: str, max_tokens: int) -> Stream:
        """Stream one answer. Raises ConnectionError where the server hangs up, TimeoutError after a minute."""
        body = {
            "model": "paced", "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens,
            "seed": number, "temperature": 0, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        data = json.dumps(body).encode()
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: %b:%d\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % (self._host.encode(), self._port or 80, len(data))
        ) + data
        while self._idle and self._idle[-1].is_closed:  # hung up on since
            self._idle.pop()
        if not self._idle:
            await self.open(1)
        connection = self._idle.pop()
        stream = await connection.run(number, request)
        self._idle.append(connection)
        return stream

    def close(self) -> None:
        """Close all connections."""
        for connection in self._idle:
            connection.close()
        self._idle = []


class _Connection(asyncio.Protocol):
    """One connection, one stream at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's derives from nothing of asyncio
        self._stream: Stream | None = None

    async def run(self, number: int, request: bytes) -> Stream:
        self._stream = Stream(number, time.monotonic())
        self._done: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        async with asyncio.timeout(TIMEOUT_S):
            return await self._done

    def data_received(self, data: bytes) -> None:
        stream = self._stream
        if stream is None:
            return
        stream.parts.append((time.monotonic(), data))
        # An answer that is no stream has a length and no last chunk.
        if data.endswith(LAST) or not stream.parts[0][1].startswith(b"HTTP/1.1 200"):
            self._stream = None
            self._done.set_result(stream)

    def connection_lost(self, error: Exception | None) -> None:
        if self._stream is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"the server hung up: {error}"))

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()
