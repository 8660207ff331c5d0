"""The link: one long-lived bidirectional stream of frames between two processes.

It is greeted over gRPC, and goes on over a socket of its own where both ends can, over the same stream where not.
Knows frames, order, liveness and epochs; nothing of what a frame means. Every link ends exactly once, with a reason:
the peer closed it, the stream broke, the peer fell silent, or it read too slowly.

    dialling -> (challenge, hello, welcome) -> up -> down -> dialling with the next epoch
                (challenge, hello, welcome with a port, socket, end of the stream) -> up
                (challenge, hello, refused) -> down, tried again at the slowest rate

Invariant: `on_down` follows every `on_up`, and no message is handed out before the one or after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import random
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from pagewire.core.errors import ErrorInfo, PagewireError, PeerMismatch, Unavailable
from pagewire.core.load import Load
from pagewire.core.messages import NONCE_BYTES, Challenge, Heartbeat, Hello, LinkMessage, Refused, Welcome
from pagewire.core.side_door import Card, SideDoor, enter_by
from pagewire.core.tasks import check_cancelled
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.handshake import Identity
from pagewire.serving.line import BROKEN, MAX_FRAME_BYTES, Line, LinkSocket, LinkStream, why
from pagewire.serving.tls import CLEAR, Wire

log = logging.getLogger(__name__)

METHOD = "/pagewire.link.v1.Links/Connect"
MAX_OUTBOX_BYTES = 64 << 20  # a peer that reads this far behind is as good as dead
SOCKET_S = 1.0  # to connect beside a stream that stands; a firewall that drops packets costs this once a link
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Pods of one host share nothing through gRPC's global subchannel pool: a dead peer's backoff would be inherited.
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """Seconds: how often an idle link says so, how long silence may last, the connect and reconnect bounds."""

    heartbeat_s: float = 1.0
    silence_s: float = 10.0
    connect_s: float = 5.0
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 2.0


MessageCallback = Callable[["Link", LinkMessage], None]


class Link:
    """One epoch of a link, after its handshake."""

    def __init__(self, line: Line, peer: Hello | Welcome, times: LinkTimes, load: Callable[[], Load | None]) -> None:
        self.peer = peer
        self._line = line
        self._times = times
        self._load = load
        self._closing = asyncio.Event()
        self._reason = ""
        self._heard_s = 0.0
        self.has_heard = False  # a frame, ever

    @property
    def has_socket(self) -> bool:
        """True where it needs its stream no more."""
        return isinstance(self._line, LinkSocket)

    @property
    def is_up(self) -> bool:
        """True until the link starts to close."""
        return not self._closing.is_set()

    @property
    def reason(self) -> str:
        """Why the link ended; empty while it is up."""
        return self._reason

    def send(self, message: LinkMessage) -> None:
        """Queue a frame behind all earlier ones; raises Unavailable when the link is down or its peer too slow."""
        if self._closing.is_set():
            raise Unavailable(f"the link to {self.peer.peer_id} is down: {self._reason}")
        data = LINK_CODEC.encode(message)
        if self._line.unsent_bytes + len(data) > MAX_OUTBOX_BYTES:
            self.close("the peer reads too slowly")
            raise Unavailable(f"{self.peer.peer_id} reads too slowly")
        self._line.send(data)

    def say(self, message: LinkMessage) -> None:
        """Send a frame, unless the link is down: its end is an event of its own, and settles what was on it."""
        try:
            self.send(message)
        except Unavailable as error:
            log.debug("%s not said: %s", type(message).__name__, error.message)

    async def finish(self, timeout_s: float) -> None:
        """Say nothing more; wait until what was said went out, or the link is down, or `timeout_s` seconds passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._line.finish()

    def close(self, reason: str) -> None:
        """End the link; what is queued is dropped."""
        if not self._closing.is_set():
            self._reason = reason
            self._closing.set()
            self._line.close()

    async def ended(self) -> None:
        """Return once the link is down."""
        await self._closing.wait()

    async def pump(self, on_message: MessageCallback) -> None:
        """Carry frames both ways until the link ends; returns, never raises, when it does."""
        self._heard_s = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(self._carry(on_message)), asyncio.create_task(self._beat())]
        try:
            while self.is_up:
                await self._heed()
        finally:
            self.close("the process stops")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _heed(self) -> None:
        """Wait for the end; close the link where the peer has been silent too long. A timer for each message costs."""
        silence_s, heard_s = self._times.silence_s, self._heard_s
        try:
            async with asyncio.timeout_at(heard_s + silence_s):
                await self._closing.wait()
        except TimeoutError:
            if self._heard_s == heard_s:
                self.close(f"silent for {silence_s} s")

    async def _carry(self, on_message: MessageCallback) -> None:
        self.close(await self._line.carry(functools.partial(self._take, on_message)))

    def _take(self, on_message: MessageCallback, data: bytes) -> None:
        self._heard_s, self.has_heard = asyncio.get_running_loop().time(), True
        try:
            for message in LINK_CODEC.decode(data):
                on_message(self, message)
        except PeerMismatch as error:
            self.close(error.message)
        except Exception as error:
            # A callback that raises is our own bug: end the link loudly, so that its requests are settled.
            log.exception("link to %s: a message could not be handled", self.peer.peer_id)
            self.close(f"internal error: {error}")

    async def _beat(self) -> None:
        """Say by time that we are alive, not only when idle: a busy link must carry its load too."""
        try:
            while True:
                self.say(Heartbeat(load=self._load()))
                await asyncio.sleep(self._times.heartbeat_s)
        finally:
            self.close("the heartbeat ended")  # whatever ended it, who hears nothing gives the link up


def _no_load() -> Load | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvents:
    """What the owner of links wants to hear. Called on the event loop, in order, and must not block."""

    on_message: MessageCallback
    on_up: Callable[[Link], None]
    on_down: Callable[[Link], None]


class LinkServer:
    """Accepts links; `handler()` is what the process's gRPC server adds, and `door` where sockets come in, if any."""

    def __init__(
        self,
        identity: Callable[[], Identity],
        events: LinkEvents,
        *,
        times: LinkTimes | None = None,
        load: Callable[[], Load | None] = _no_load,
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
        if not link.has_socket:
            return await self._keep(link)
        # The stream ends with this, which says that the socket was taken: idle, it would last as proxies let it.
        carrying = asyncio.create_task(self._keep(link))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)

    async def _keep(self, link: Link) -> None:
        self._links.add(link)
        try:
            self._events.on_up(link)
            await link.pump(self._events.on_message)
        finally:
            self._links.discard(link)
            link.close("the stream ended")
            self._events.on_down(link)

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


class _NoSocketError(Exception):
    """The socket beside a stream cannot be had."""


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
        load: Callable[[], Load | None] = _no_load,
        wire: Wire = CLEAR,
    ) -> None:
        self.address = address
        self.error: PagewireError | None = None  # why there is no link now
        self.link: Link | None = None
        self._identity = identity
        self._events = events
        self._times = times or LinkTimes()
        self._load = load
        self._wire = wire
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
        try:
            opened = self._wire.channel(self.address, CHANNEL_OPTIONS)
        except OSError as error:
            raise Unavailable(f"no certificate to show to {self.address}: {error}") from error
        async with opened as channel:
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
