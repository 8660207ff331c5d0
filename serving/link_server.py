"""Where links come in: the gRPC method that greets whoever dials, and the socket that it lets them in by.

Knows the greeting's order; whom to believe is `Identity`'s. Invariant: a link is handed out once both ends have proven
themselves, and every one is closed when the server is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import secrets
import socket
from collections.abc import Callable
from typing import Any

import grpc

from pagewire.core.errors import ErrorInfo, PagewireError, PeerMismatch
from pagewire.core.load import Load
from pagewire.core.messages import NONCE_BYTES, Challenge, Hello, Refused, Welcome
from pagewire.core.side_door import SideDoor
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.handshake import Identity
from pagewire.serving.line import BROKEN, Line, LinkSocket, LinkStream, why
from pagewire.serving.link import METHOD, Link, LinkEvents, LinkTimes, no_load

log = logging.getLogger(__name__)


class LinkServer:
    """Accepts links; `handler()` is what the process's gRPC server adds, and `door` where sockets come in, if any."""

    def __init__(
        self,
        identity: Callable[[], Identity],
        events: LinkEvents,
        *,
        times: LinkTimes | None = None,
        load: Callable[[], Load | None] = no_load,
        door: SideDoor | None = None,
    ) -> None:
        self._identity = identity
        self._events = events
        self._times = times or LinkTimes()
        self._load = load
        self._door = door
        self._links: set[Link] = set()
        self._carrying: set[asyncio.Task[None]] = set()  # those that have left their stream
        self._is_closed = False

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler of `Links.Connect`."""
        service, method = METHOD.strip("/").split("/")
        return grpc.method_handlers_generic_handler(
            service, {method: grpc.stream_stream_rpc_method_handler(self._connect)}
        )

    async def aclose(self, reason: str, flush_s: float = 1.0) -> None:
        """End all links, after what is queued on them went out; a call that comes later ends at once."""
        self._is_closed = True
        links = list(self._links)
        await asyncio.gather(*(link.finish(flush_s) for link in links))
        for link in links:
            link.close(reason)
        await asyncio.gather(*self._carrying)

    async def _connect(self, _requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        try:
            async with asyncio.timeout(self._times.connect_s):
                greeted = await self._greet(context)
        except TimeoutError:
            log.warning("link refused: %s said nothing for %s s", context.peer(), self._times.connect_s)
            return
        except BROKEN as error:
            log.info("no link: %s is gone: %s", context.peer(), why(error))
            return
        if greeted is None:
            return
        hello, line = greeted
        link = Link(line, hello, self._times, self._load)
        if self._is_closed:
            return link.close("the process stops")
        self._links.add(link)  # now: the server may be closed before the task below begins
        if not link.has_socket:
            return await self._keep(link)
        # The stream ends with this, which says that the socket was taken: idle, it would last as proxies let it.
        carrying = asyncio.create_task(self._keep(link))
        self._carrying.add(carrying)
        carrying.add_done_callback(functools.partial(self._carried, link))

    async def _keep(self, link: Link) -> None:
        try:
            self._events.on_up(link)
            await link.pump(self._events.on_message)
        finally:
            self._let_go(link)
            self._events.on_down(link)

    def _carried(self, link: Link, carrying: asyncio.Task[None]) -> None:
        self._carrying.discard(carrying)
        self._let_go(link)  # here too, since a task may be cancelled before it began

    def _let_go(self, link: Link) -> None:
        self._links.discard(link)
        link.close("the stream ended")

    async def _greet(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> tuple[Hello, Line] | None:
        """Return who dialled and what to talk over, once both have proven themselves; None for no link."""
        challenge = Challenge(nonce=secrets.token_bytes(NONCE_BYTES))
        await context.write(LINK_CODEC.encode(challenge))
        data: Any = await context.read()
        if data is grpc.aio.EOF or self._is_closed:
            return None
        try:
            hello = LINK_CODEC.decode_one(data)
            if not isinstance(hello, Hello):
                raise PeerMismatch(f"a link starts with Hello, not {type(hello).__name__}")
            identity = self._identity()
            welcome = identity.answer(challenge, hello)
        except PagewireError as error:
            log.warning("link refused: %s", error.message)
            await context.write(LINK_CODEC.encode(Refused(error=ErrorInfo.of(error))))
            return None
        if self._door is not None and hello.takes_socket:
            return hello, await self._let_in(self._door, context, welcome, identity.socket_tokens(welcome))
        await context.write(LINK_CODEC.encode(welcome))
        return hello, LinkStream(context)  # type: ignore[arg-type]

    async def _let_in(
        self,
        door: SideDoor,
        context: grpc.aio.ServicerContext[bytes, bytes],
        welcome: Welcome,
        tokens: tuple[bytes, bytes],
    ) -> Line:
        """Welcome who dialled with a port, and return the line that it opens there."""
        entered: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        try:
            card = await door.invite(entered.set_result, tokens)
        except OSError as error:
            log.warning("links go over gRPC: %s", error)
            await context.write(LINK_CODEC.encode(welcome))
            return LinkStream(context)  # type: ignore[arg-type]
        try:
            await context.write(LINK_CODEC.encode(dataclasses.replace(welcome, socket_port=card.port)))
            return await LinkSocket.over(await asyncio.shield(entered))
        except BaseException:
            door.forget(card)
            if entered.done():
                entered.result().close()
            raise
