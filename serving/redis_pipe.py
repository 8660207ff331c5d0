"""One connection to one Redis server that takes many commands in one write and hands back their answers.

redis-py spends more on packing and awaiting 128 commands than the server does on answering them, and a lookup in the
prefix index is 128 commands before every request. Here they are one string of bytes and one wait. Knows no keys, no
cluster. Invariant: answers come in the order of commands, so an ask that was given up still takes its answers away;
a server that owes answers for STALL_S is taken for dead and its connection dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import hiredis

from pagewire.core.tasks import shared
from pagewire.serving.redis_address import TIMEOUT_S, RedisAddress

MAX_REPLY_BYTES = 32 << 20  # unread answers of a connection: more is no index of ours
MAX_ASKS = 512  # at once on one connection
STALL_S = 2.0


def encoded(*words: bytes) -> bytes:
    """Return a command as Redis takes it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


@dataclass(slots=True)
class _Ask:
    count: int
    answer: asyncio.Future[list[object]]
    asked_s: float
    got: list[object] = field(default_factory=list)


class _Wire(asyncio.Protocol):
    """A connection that is up."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._asks: deque[_Ask] = deque()
        self._unread = 0
        self._transport: asyncio.Transport | None = None
        self._why = "it is not made yet"  # there is none

    @property
    def is_up(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def ask(self, payload: bytes, count: int) -> asyncio.Future[list[object]]:
        """Send `count` commands; raises ConnectionError where the server owes too much already."""
        now_s = self._loop.time()
        if self._asks and now_s - self._asks[0].asked_s > STALL_S:
            self.drop("the server does not answer")
        if self._transport is None or not self.is_up:
            raise ConnectionError(f"the connection to Redis is down: {self._why}")
        if len(self._asks) >= MAX_ASKS:
            raise ConnectionError("too many unanswered commands")
        ask = _Ask(count, self._loop.create_future(), now_s)
        self._asks.append(ask)
        self._transport.write(payload)
        return ask.answer

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                self._take(answer)
        # A map may have a key that Python's cannot, and a list may say that it has more entries than there is memory.
        except (hiredis.ProtocolError, TypeError, MemoryError) as error:
            self.drop(f"not the protocol of Redis: {error}")
        if self._unread > MAX_REPLY_BYTES:
            self.drop("answers without end")

    def _take(self, answer: object) -> None:
        if not self._asks:
            # Whom it does not let in a server tells so, and hangs up: too many callers, or none from other machines.
            is_error = isinstance(answer, hiredis.ReplyError)
            self.drop(f"it says {answer}" if is_error else "an answer that nobody asked for")
            return
        ask = self._asks[0]
        ask.got.append(answer)
        if len(ask.got) == ask.count:
            self._asks.popleft()
            self._unread = 0
            if not ask.answer.done():
                ask.answer.set_result(ask.got)

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop(str(exc or "closed by the server"))

    def drop(self, why: str) -> None:
        """End the connection and fail what waits for it."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._why = why
            transport.abort()
        while self._asks:
            answer = self._asks.popleft().answer
            if not answer.done():
                answer.set_exception(ConnectionError(f"the connection to Redis is down: {why}"))


class RedisPipe:
    """A connection that is made when it is needed, and again after it was lost."""

    def __init__(self, address: RedisAddress, host: str, port: int) -> None:
        self._address = address
        self._host = host
        self._port = port
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[_Wire] | None = None

    @property
    def where(self) -> str:
        """The server's address, for people."""
        return self._address.path or f"{self._host}:{self._port}"

    async def ask(self, payload: bytes, count: int, timeout_s: float) -> Sequence[object]:
        """Send `count` commands and return their answers, errors among them as values.

        Raises TimeoutError after `timeout_s` seconds and OSError without a connection. An answer that is here in time
        counts even where the event loop comes to it late.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        wire = self._wire if self._wire is not None and self._wire.is_up else await self._connected(timeout_s)
        answer = wire.ask(payload, count)
        timer = loop.call_at(until_s, _expire, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    def close(self) -> None:
        """Drop the connection, and what is being connected: whoever waits for either hears of a ConnectionError."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._wire is not None:
            self._wire.drop("closed")

    async def _connected(self, timeout_s: float) -> _Wire:
        # Whoever waits too briefly leaves the connection to whoever comes next.
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(_heard)
        return await shared(self._connecting, timeout_s)

    async def _connect(self) -> _Wire:
        address, loop = self._address, asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_S):
            if address.path:
                _, wire = await loop.create_unix_connection(_Wire, address.path)
            else:
                try:
                    _, wire = await loop.create_connection(_Wire, self._host, self._port, ssl=address.tls())
                except OSError:  # a certificate that is not believed is a ValueError as well
                    raise
                except (ValueError, OverflowError) as error:  # a cluster says itself where its servers are
                    raise OSError(f"{self.where} is no address: {error}") from error
            try:
                await self._greet(wire)
            except BaseException:
                wire.drop("not let in")
                raise
        self._wire = wire
        return wire

    async def _greet(self, wire: _Wire) -> None:
        commands = []
        if self._address.password:
            user = [self._address.username.encode()] if self._address.username else []
            commands.append(encoded(b"AUTH", *user, self._address.password.encode()))
        if self._address.db:
            commands.append(encoded(b"SELECT", b"%d" % self._address.db))
        if commands:
            for answer in await wire.ask(b"".join(commands), len(commands)):
                if isinstance(answer, hiredis.ReplyError):
                    raise ConnectionError(f"Redis refused us: {answer}")


def _expire(answer: asyncio.Future[list[object]]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("Redis did not answer in time"))


def _heard(connecting: asyncio.Task[_Wire]) -> None:
    """Its failure was told to whoever waited; nobody need have."""
    if not connecting.cancelled():
        connecting.exception()
