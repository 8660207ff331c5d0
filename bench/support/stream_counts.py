"""A client process that streams completions at once, and counts the events that come; nothing is done for one but that.

    python stream_counts.py      (stdin: one line of JSON, {"url", "requests": [[prompt, max tokens, seed], ...], ...})

Says "ready", waits for another line, and streams. Then says in a line of JSON what came: moments are of
CLOCK_MONOTONIC, which all processes of a machine share. A stream that ends before its time ends the process with 1.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

EVENT, DONE = b'"text"', b"data: [DONE]"
KEPT = max(len(EVENT), len(DONE)) - 1  # bytes in which a mark may have begun


@dataclass(slots=True)
class Count:
    """Of one stream: its events, the last of which has no token, and when the first of them came."""

    events: int = 0
    first_s: float = 0.0


class CountedStream(asyncio.Protocol):
    """One request on a connection of its own; `done` has the count, or the reason why there is none."""

    def __init__(self, request: bytes) -> None:
        self.done: asyncio.Future[Count] = asyncio.get_running_loop().create_future()
        self._request = request
        self._count = Count()
        self._kept = b""
        self._is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's derives from nothing of asyncio
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count what came."""
        seen = self._kept + data
        if not self._is_answered:
            head, end, seen = seen.partition(b"\r\n\r\n")
            if not end:
                self._kept = head
                return
            if b" 200 " not in head.partition(b"\r\n")[0]:
                return self._fail(f"answered {head.decode()} {seen.decode(errors='replace')[:1000]}")
            self._is_answered = True
        self._count.events += seen.count(EVENT) - self._kept.count(EVENT)  # what was kept was counted
        if self._count.events and not self._count.first_s:
            self._count.first_s = time.monotonic()
        self._kept = seen[-KEPT:]
        if DONE in seen:
            self._transport.close()
            if not self.done.done():
                self.done.set_result(self._count)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell, unless all was here."""
        self._fail(f"a stream ended before its time: {error}")

    def _fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(reason))
            self._transport.close()


async def stream(host: str, port: int, request: bytes) -> Count:
    """Stream one request; raises RuntimeError where it is not answered to its end."""
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: CountedStream(request), host, port)
    return await protocol.done


def request_of(asked: dict[str, Any]) -> bytes:
    """Return the bytes of a request."""
    body = json.dumps(asked).encode()
    head = f"Host: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n".encode() + body


async def stream_all(url: str, requests: list[bytes]) -> dict[str, Any]:
    """Stream all requests at once."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    before_s, started_s = time.process_time(), time.monotonic()
    counts = await asyncio.gather(*(stream(host, port, each) for each in requests))
    return {
        "started-s": started_s, "ended-s": time.monotonic(), "cpu-s": time.process_time() - before_s,
        "events": sum(each.events for each in counts), "last-first-s": max(each.first_s for each in counts),
    }  # fmt: skip


def main() -> None:
    """Read, wait, stream, tell."""
    given = json.loads(sys.stdin.readline())
    common = {"model": "", "temperature": given["temperature"], "ignore_eos": True, "stream": True}
    requests = [
        request_of({**common, "prompt": prompt, "max_tokens": max_tokens, "seed": seed})
        for prompt, max_tokens, seed in given["requests"]
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        from uvloop import run  # noqa: PLC0415
    except ImportError:
        run = asyncio.run
    print(json.dumps(run(stream_all(given["url"], requests))), flush=True)


if __name__ == "__main__":
    main()
