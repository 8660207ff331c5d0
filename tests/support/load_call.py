"""One call upon a router over a bare socket, whose own cost hides little of what many streams come to; what it heard.

While an answer streams bytes and moments are kept; what they say is read when it is over. A caller who cannot connect,
or is told that the router drains, goes to the next one, as the SDK does; nothing else is tried again. Moments are of
CLOCK_MONOTONIC, in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from load_questions import Question

LAST = b"0\r\n\r\n"
WAIT_S = 60.0
SLOW_BYTES = 1 << 16  # what a slow reader takes at a time


@dataclass(slots=True)
class Call:
    """One request for `n` answers. `error` is the code of what it failed by, "" where they are whole; times once it is
    over.
    """

    question: Question
    begun_s: float
    max_tokens: int
    n: int = 1
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    end_s: float = 0.0
    is_over: bool = False
    failure: str = ""  # of the connection, whatever came over it
    answers: tuple[tuple[int, ...], ...] = ()
    error: str = ""
    message: str = ""
    status: int = 0
    retry_after: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def is_wrong(self) -> bool:
        """True where a token came that is not the model's at its place."""
        return any(answer != self.question.answer[: len(answer)] for answer in self.answers)

    @property
    def num_tokens(self) -> int:
        """How many tokens came, in all answers."""
        return sum(len(answer) for answer in self.answers)

    @property
    def has_tokens(self) -> bool:
        """True once the first token is here."""
        return any(b'"token_ids"' in data for _, data in self.parts)

    @property
    def ttft_s(self) -> float:
        """From the request to its first token; to its end where none came."""
        return next((at for at, data in self.parts if b'"token_ids"' in data), self.end_s) - self.begun_s

    @property
    def longest_gap_s(self) -> float:
        """The longest time without news between the first token and the end."""
        return max(self.gaps_s, default=0.0)

    @property
    def gaps_s(self) -> list[float]:
        """All times without news between the first token and the end."""
        times = [at for at, data in self.parts if b"data:" in data]
        return [after - before for before, after in itertools.pairwise(times)]

    @property
    def is_here(self) -> bool:
        """True once the last byte of a stream is here."""
        return b"".join(data for _, data in self.parts[-len(LAST) :]).endswith(LAST)

    def read(self) -> None:
        """Take in what was said, once it is over."""
        self.error, self.answers = "", ()
        self._take_in()
        self.error = self.failure or self.error

    def _take_in(self) -> None:
        data = b"".join(part for _, part in self.parts)
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0].startswith("HTTP/") else 0
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        self.retry_after = headers.get("retry-after", "")
        if self.status != 200:
            with contextlib.suppress(ValueError, KeyError):
                said = json.loads(body)["error"]
                self.error, self.message = said["code"], said["message"]
            self.error = self.error or "broken"
            return
        answers: list[list[int]] = [[] for _ in range(self.n)]
        is_done = False
        for line in _unchunked(body).split(b"\n")[:-1]:  # the last one may be cut off
            if line.startswith(b"data: {"):
                said = json.loads(line[6:])
                self.error = said.get("error", {}).get("code", self.error)
                self.message = said.get("error", {}).get("message", self.message)
                self.said = said.get("pagewire") or self.said
                for choice in said.get("choices", ()):
                    answers[choice["index"]] += choice.get("token_ids") or []
            is_done |= line.startswith(b"data: [DONE]")
        self.answers = tuple(tuple(answer) for answer in answers)
        if not self.error and not (is_done and all(len(answer) == self.max_tokens for answer in answers)):
            self.error = "broken" if not is_done else "short"


def _unchunked(body: bytes) -> bytes:
    """Return the payload of HTTP chunks, as far as it goes."""
    found, rest = bytearray(), body
    while True:
        size, line, rest = rest.partition(b"\r\n")
        if not line or not size or (length := int(size, 16)) == 0:
            return bytes(found)
        found += rest[:length]
        rest = rest[length + 2 :]


def request_of(call: Call, **fields: Any) -> bytes:
    """Return the bytes that ask for a stream of these answers."""
    body = json.dumps({
        "max_tokens": call.max_tokens, "temperature": 0, "ignore_eos": True, "n": call.n, "stream": True,
        "return_token_ids": True, "pagewire": {"timeline": True}, **fields,
    })  # fmt: skip
    said = f'{{"prompt": {_listed(call.question.prompt)}, {body[1:]}'
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(said)}\r\n\r\n{said}".encode()


@functools.lru_cache
def _listed(tokens: tuple[int, ...]) -> str:
    return json.dumps(tokens)


async def ask(
    call: Call, urls: Sequence[str], *, pace_s: float = 0.0, within_s: float = WAIT_S, reads: bool = True,
    lines: Lines | None = None, **fields: Any,
) -> Call:  # fmt: skip
    """Stream one answer from the first router that can be connected to; what fails is in the call.

    A slow reader waits `pace_s` seconds after each part. What is whole is not read if it is not to be: then the caller
    does, later. Over `lines` it may go by a connection that another call had before.
    """
    data, lines = request_of(call, **fields), lines or Lines()
    for url in urls:
        call.parts.clear()
        call.failure = ""
        try:
            async with asyncio.timeout(within_s):
                async with lines.one(url) as line:
                    was_kept = line.was_asked
                    await line.ask(call, data, pace_s)
                if was_kept and not call.parts:  # the router ended it just then
                    async with lines.one(url, is_new=True) as line:
                        await line.ask(call, data, pace_s)
        except TimeoutError:
            call.failure = "no answer"
        except OSError:
            pass  # what came tells that it is not whole
        call.end_s = time.monotonic()
        if reads or not call.is_here:
            call.read()
        if call.parts and call.error != "draining":
            break
    call.is_over = True
    return call


class Lines:
    """Connections that calls share, one at a time, where `keeps` says so: a call that was answered leaves its own."""

    def __init__(self, *, keeps: bool = False) -> None:
        self._keeps = keeps
        self._kept: dict[str, list[_Line]] = {}

    @contextlib.asynccontextmanager
    async def one(self, url: str, *, is_new: bool = False) -> AsyncIterator[_Line]:
        """Yield a connection to a router that no other call has; raises OSError where there is none to be had."""
        kept, line = self._kept.setdefault(url, []), None
        while kept and not is_new and (line is None or line.transport.is_closing()):
            line = kept.pop()
        if line is None or line.transport.is_closing():
            at = urlsplit(url)
            _, line = await asyncio.get_running_loop().create_connection(_Line, at.hostname or "", at.port or 80)
        try:
            yield line
            if self._keeps and line.is_free:
                kept.append(line)
                line = None
        finally:
            if line is not None:
                line.transport.abort()

    def close(self) -> None:
        """End those that nobody has."""
        for line in itertools.chain(*self._kept.values()):
            line.transport.abort()
        self._kept.clear()


class _Line(asyncio.Protocol):
    """One connection, for one call at a time: keeps what comes in it until that is whole, or nothing more comes."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._call: Call | None = None
        self._pace_s = 0.0
        self._over: asyncio.Future[bool] | None = None
        self.was_asked = False  # anything, by any call

    @property
    def is_free(self) -> bool:
        """True where the last call was answered, and another one may be asked."""
        return self._call is None and not self.transport.is_closing()

    async def ask(self, call: Call, data: bytes, pace_s: float) -> None:
        """Send a request and return when its answer is whole, or nothing more comes."""
        loop = asyncio.get_running_loop()
        self._call, self._pace_s, self._over, self.was_asked = call, pace_s, loop.create_future(), True
        if pace_s:
            self.transport.max_size = SLOW_BYTES  # type: ignore[attr-defined]
        self.transport.write(data)
        if await self._over:
            self._call = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            return
        self._call.parts.append((time.monotonic(), data))
        if data.endswith(LAST) or (len(data) < len(LAST) and self._call.is_here) or _is_whole_refusal(self._call):
            self._end(is_whole=True)
        elif self._pace_s:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(self._pace_s, self._go_on)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(is_whole=False)

    def _end(self, *, is_whole: bool) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(is_whole)

    def _go_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()


def _is_whole_refusal(call: Call) -> bool:
    """An answer that is no stream has a length and no last chunk."""
    if call.parts[0][1].startswith(b"HTTP/1.1 200"):
        return False
    head, _, body = b"".join(part for _, part in call.parts).partition(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    return found is not None and len(body) >= int(found[1])
