"""Keeps a link to one address, whatever happens to it.

Knows one address and the greeting's order; whom to believe is `Identity`'s. Invariant: there is one link at a time, and
each has a higher epoch than the one before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import secrets
from collections.abc import Callable
from typing import Any

import grpc

from pagewire.core.errors import PagewireError, PeerMismatch, Unavailable
from pagewire.core.load import Load
from pagewire.core.messages import NONCE_BYTES, Challenge, LinkMessage, Refused, Welcome
from pagewire.core.side_door import Card, enter_by
from pagewire.core.tasks import check_cancelled
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.handshake import Identity
from pagewire.serving.line import BROKEN, Line, LinkSocket, LinkStream, why
from pagewire.serving.link import CHANNEL_OPTIONS, METHOD, Link, LinkEvents, LinkTimes, no_load
from pagewire.serving.tls import CLEAR, Wire

log = logging.getLogger(__name__)

SOCKET_S = 1.0  # to connect beside a stream that stands; a firewall that drops packets costs this once a link


class _NoSocketError(Exception):
    """The socket beside a stream cannot be had."""


def _nothing() -> None:
    return


_Call = grpc.aio.StreamStreamCall[bytes, bytes]


class LinkDialer:
    """Keeps a link to one address: dials, hands it out, dials again with the next epoch when it ended."""

    def __init__(
        self,
        address: str,
        identity: Callable[[], Identity],
        events: LinkEvents,
        *,
        times: LinkTimes | None = None,
        load: Callable[[], Load | None] = no_load,
        wire: Wire = CLEAR,
        on_broken: Callable[[], None] = _nothing,
    ) -> None:
        self.address = address
        self.error: PagewireError | None = None  # why there is no link now
        self.link: Link | None = None
        self._identity = identity
        self._events = events
        self._times = times or LinkTimes()
        self._load = load
        self._wire = wire
        self._on_broken = on_broken  # hears of an error of our own that ended a link
        self._takes_socket = wire.is_clear
        self._epoch = 0
        self._settled = asyncio.Event()

    async def run(self) -> None:
        """Keep the link until cancelled."""
        times, loop = self._times, asyncio.get_running_loop()
        delay_s = times.reconnect_min_s
        while True:
            check_cancelled()
            self._epoch += 1
            began_s = loop.time()
            try:
                await self._dial()
                # One that was over at once is no better than none.
                is_short = loop.time() - began_s < times.reconnect_max_s
                delay_s = min(delay_s * 2, times.reconnect_max_s) if is_short else times.reconnect_min_s
            except PagewireError as error:
                if self.error is None or self.error.message != error.message:
                    log.warning("no link to %s: %s", self.address, error.message)
                self.error = error
                delay_s = min(delay_s * 2, times.reconnect_max_s)
                if not isinstance(error, Unavailable):
                    delay_s = times.reconnect_max_s
            except Exception as error:  # our own bug: it costs this link, not every one after it
                log.exception("the link to %s ended in an error that nobody foresaw", self.address)
                self.error, delay_s = Unavailable(f"internal error: {error}"), times.reconnect_max_s
                self._on_broken()
            self._settled.set()
            # Jitter, so that a pod that comes back is not dialled by everybody in the same millisecond.
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))

    async def up(self, timeout_s: float) -> Link:
        """Return the link, waiting for the first attempt; raises why there is none (Unavailable, PeerMismatch, …)."""
        if self.link is None and self.error is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._settled.wait()
            except TimeoutError:
                raise Unavailable(f"no link to {self.address} within {timeout_s} s") from None
        if self.link is None:
            raise self.error or Unavailable(f"no link to {self.address}")
        return self.link

    async def _dial(self) -> None:
        async with self._wire.channel(self.address, CHANNEL_OPTIONS) as channel:
            link = await self._linked(channel)
            try:
                check_cancelled()
                if link.has_socket:
                    await channel.close()
                await self._keep(link)
            finally:
                link.close("the process stops")
        # A path may let a socket in and nothing through it.
        self._takes_socket = self._wire.is_clear and (link.has_heard or not link.has_socket)

    async def _keep(self, link: Link) -> None:
        self.link, self.error = link, None
        self._settled.set()
        try:
            self._events.on_up(link)
            await link.pump(self._events.on_message)
        finally:
            self.link = None
            self.error = Unavailable(link.reason)
            self._events.on_down(link)

    async def _linked(self, channel: grpc.aio.Channel) -> Link:
        try:
            try:
                return await self._greeted(channel, takes_socket=self._takes_socket)
            except _NoSocketError as error:
                log.info("the link to %s goes over gRPC: %s", self.address, error)
                return await self._greeted(channel, takes_socket=False)
        except TimeoutError:
            raise Unavailable(f"{self.address} did not answer within {self._times.connect_s} s") from None
        except BROKEN as error:
            raise Unavailable(self._wire.explain(why(error))) from error

    async def _greeted(self, channel: grpc.aio.Channel, *, takes_socket: bool) -> Link:
        call: _Call = channel.stream_stream(METHOD)()
        try:
            async with asyncio.timeout(self._times.connect_s):
                return await self._greet(call, takes_socket=takes_socket)
        except BaseException:
            call.cancel()
            raise

    async def _greet(self, call: _Call, *, takes_socket: bool) -> Link:
        identity = self._identity()
        challenge = await self._heard(call)
        if not isinstance(challenge, Challenge):
            raise PeerMismatch(f"{self.address} starts with {type(challenge).__name__}, not Challenge")
        hello = identity.hello(challenge, self._epoch, secrets.token_bytes(NONCE_BYTES))
        hello = dataclasses.replace(hello, takes_socket=takes_socket)
        await call.write(LINK_CODEC.encode(hello))
        answer = await self._heard(call)
        if isinstance(answer, Refused):
            raise answer.error.error()
        if not isinstance(answer, Welcome):
            raise PeerMismatch(f"{self.address} answered {type(answer).__name__} to Hello")
        identity.check(hello, answer)
        line: Line = LinkStream(call)  # type: ignore[arg-type]
        if takes_socket and answer.socket_port:
            line = await self._beside(call, answer.socket_port, identity.socket_tokens(answer))
        return Link(line, answer, self._times, self._load)

    async def _beside(self, call: _Call, port: int, tokens: tuple[bytes, bytes]) -> Line:
        """Return the socket that takes the stream's place. Raises _NoSocketError."""
        host = self.address.rpartition(":")[0].strip("[]")
        try:
            card = Card(token=tokens[0], answer=tokens[1], host=host, port=port)
            line = await LinkSocket.over(await enter_by(card, SOCKET_S))
        except OSError as error:
            raise _NoSocketError(str(error)) from error
        try:
            said: Any = await call.read()
            if said is not grpc.aio.EOF:
                raise PeerMismatch(f"{self.address} talks on where its socket was taken")
        except BaseException:
            line.close()
            raise
        return line

    async def _heard(self, call: _Call) -> LinkMessage:
        data: Any = await call.read()
        if data is grpc.aio.EOF:
            raise Unavailable(f"{self.address} closed the link at once: {await call.details()}")
        return LINK_CODEC.decode_one(data)
