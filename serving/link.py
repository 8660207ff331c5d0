"""The link: one long-lived bidirectional stream of frames between two processes.

Knows frames, order, liveness and epochs; nothing of what a frame means. Every link ends exactly once, with a reason:
the peer closed it, the stream broke, the peer fell silent, or it read too slowly.

    dialling -> (challenge, hello, welcome) -> up -> down -> dialling with the next epoch
                (challenge, hello, refused) -> down, tried again at the slowest rate

Invariant: `on_down` follows every `on_up`, and no message is handed out before the one or after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from pagewire.core.errors import ErrorInfo, PagewireError, PeerMismatch, Unavailable
from pagewire.core.load import Load
from pagewire.core.messages import NONCE_BYTES, Challenge, Heartbeat, Hello, LinkMessage, Refused, Welcome
from pagewire.core.tasks import check_cancelled
from pagewire.serving.codec import LINK_CODEC
from pagewire.serving.handshake import Identity
from pagewire.serving.tls import CLEAR, Wire

log = logging.getLogger(__name__)

METHOD = "/pagewire.link.v1.Links/Connect"
# What gRPC says on a stream whose other end is gone, or whose server stops.
BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)
MAX_FRAME_BYTES = 64 << 20
MAX_BATCH_BYTES = 1 << 20  # of frames that go out as one message, unless a single one is larger
MAX_OUTBOX_BYTES = 64 << 20  # a peer that reads this far behind is as good as dead
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


class _Stream(Protocol):
    """What gRPC's two ends of a bidirectional stream have in common."""

    async def read(self) -> Any: ...  # bytes, or grpc.aio.EOF

    async def write(self, data: bytes) -> None: ...


MessageCallback = Callable[["Link", LinkMessage], None]


class Link:
    """One epoch of a link, after its handshake."""

    def __init__(
        self, stream: _Stream, peer: Hello | Welcome, times: LinkTimes, load: Callable[[], Load | None]
    ) -> None:
        self.peer = peer
        self._stream = stream
        self._times = times
        self._load = load
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._filled = asyncio.Event()
        self._written = asyncio.Event()  # all that was queued went out
        self._closing = asyncio.Event()
        self._reason = ""
        self._heard_s = 0.0

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
        if self._outbox_bytes + len(data) > MAX_OUTBOX_BYTES:
            self.close("the peer reads too slowly")
            raise Unavailable(f"{self.peer.peer_id} reads too slowly")
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._written.clear()
        self._filled.set()

    def say(self, message: LinkMessage) -> None:
        """Send a frame, unless the link is down: its end is an event of its own, and settles what was on it."""
        try:
            self.send(message)
        except Unavailable as error:
            log.debug("%s not said: %s", type(message).__name__, error.message)

    async def flush(self, timeout_s: float) -> None:
        """Wait until all that is queued went out, or the link is down, or `timeout_s` seconds passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.is_up and self._outbox_bytes:
                    await self._written.wait()

    def close(self, reason: str) -> None:
        """End the link; what is queued is dropped."""
        if not self._closing.is_set():
            self._reason = reason
            self._closing.set()
            self._written.set()

    async def ended(self) -> None:
        """Return once the link is down."""
        await self._closing.wait()

    async def pump(self, on_message: MessageCallback) -> None:
        """Carry frames both ways until the link ends; returns, never raises, when it does."""
        self._heard_s = asyncio.get_running_loop().time()
        reader = asyncio.create_task(self._read(on_message))
        writer = asyncio.create_task(self._write())
        try:
            while self.is_up:
                await self._heed()
        finally:
            self.close("the process stops")
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _heed(self) -> None:
        """Wait for the end; close the link where the peer has been silent too long. A timer for each message costs."""
        silence_s, heard_s = self._times.silence_s, self._heard_s
        try:
            async with asyncio.timeout_at(heard_s + silence_s):
                await self._closing.wait()
        except TimeoutError:
            if self._heard_s == heard_s:
                self.close(f"silent for {silence_s} s")

    async def _read(self, on_message: MessageCallback) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                data = await self._stream.read()
                self._heard_s = loop.time()
                if data is grpc.aio.EOF:
                    return self.close("the peer closed it")
                for message in LINK_CODEC.decode(data):
                    on_message(self, message)
        except PeerMismatch as error:
            self.close(error.message)
        except BROKEN as error:
            self.close(_why(error))
        except Exception as error:
            # A callback that raises is our own bug: end the link loudly, so that its requests are settled.
            log.exception("link to %s: a message could not be handled", self.peer.peer_id)
            self.close(f"internal error: {error}")
            raise

    async def _write(self) -> None:
        try:
            clock = asyncio.get_running_loop()
            heartbeat_at_s = clock.time()
            while True:
                # By time, not only when idle: a busy link must carry its load too.
                if clock.time() >= heartbeat_at_s:
                    heartbeat_at_s = clock.time() + self._times.heartbeat_s
                    await self._stream.write(LINK_CODEC.encode(Heartbeat(load=self._load())))
                while self._outbox:
                    data = self._batch()
                    await self._stream.write(data)
                    self._outbox_bytes -= len(data)
                self._written.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(heartbeat_at_s):
                        await self._filled.wait()
                self._filled.clear()
        except BROKEN as error:
            self.close(_why(error))
        finally:
            self.close("nothing can be written any more")  # whatever ended the writer, the link is no use without it

    def _batch(self) -> bytes:
        """Take what goes out next: a message costs gRPC more than a frame costs us."""
        batch = [self._outbox.popleft()]
        num_bytes = len(batch[0])
        while self._outbox and num_bytes + len(self._outbox[0]) <= MAX_BATCH_BYTES:
            batch.append(self._outbox.popleft())
            num_bytes += len(batch[-1])
        return b"".join(batch)


def _why(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def _no_load() -> Load | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvents:
    """What the owner of links wants to hear. Called on the event loop, in order, and must not block."""

    on_message: MessageCallback
    on_up: Callable[[Link], None]
    on_down: Callable[[Link], None]


class LinkServer:
    """Accepts links; `handler()` is what the process's gRPC server adds."""

    def __init__(
        self,
        identity: Callable[[], Identity],
        events: LinkEvents,
        *,
        times: LinkTimes | None = None,
        load: Callable[[], Load | None] = _no_load,
    ) -> None:
        self._identity = identity
        self._events = events
        self._times = times or LinkTimes()
        self._load = load
        self._links: set[Link] = set()
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
        await asyncio.gather(*(link.flush(flush_s) for link in links))
        for link in links:
            link.close(reason)

    async def _connect(self, _requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        try:
            async with asyncio.timeout(self._times.connect_s):
                hello = await self._greet(context)
        except TimeoutError:
            log.warning("link refused: %s said nothing for %s s", context.peer(), self._times.connect_s)
            return
        except BROKEN as error:
            log.info("no link: %s is gone: %s", context.peer(), _why(error))
            return
        if hello is None or self._is_closed:
            return
        link = Link(context, hello, self._times, self._load)  # type: ignore[arg-type]
        self._links.add(link)
        try:
            self._events.on_up(link)
            await link.pump(self._events.on_message)
        finally:
            self._links.discard(link)
            link.close("the stream ended")
            self._events.on_down(link)

    async def _greet(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> Hello | None:
        """Return who dialled, once both have proven themselves; None where there is to be no link."""
        challenge = Challenge(nonce=secrets.token_bytes(NONCE_BYTES))
        await context.write(LINK_CODEC.encode(challenge))
        data: Any = await context.read()
        if data is grpc.aio.EOF or self._is_closed:
            return None
        try:
            hello = LINK_CODEC.decode_one(data)
            if not isinstance(hello, Hello):
                raise PeerMismatch(f"a link starts with Hello, not {type(hello).__name__}")
            welcome = self._identity().answer(challenge, hello)
        except PagewireError as error:
            log.warning("link refused: %s", error.message)
            await context.write(LINK_CODEC.encode(Refused(error=ErrorInfo.of(error))))
            return None
        await context.write(LINK_CODEC.encode(welcome))
        return hello


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
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
            try:
                async with asyncio.timeout(self._times.connect_s):
                    link = await self._greet(call)
            except TimeoutError:
                raise Unavailable(f"{self.address} did not answer within {self._times.connect_s} s") from None
            except BROKEN as error:
                raise Unavailable(self._wire.explain(_why(error))) from error
            check_cancelled()
            self.link, self.error = link, None
            self._settled.set()
            try:
                self._events.on_up(link)
                await link.pump(self._events.on_message)
            finally:
                self.link = None
                self.error = Unavailable(link.reason)
                self._events.on_down(link)
                call.cancel()

    async def _greet(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> Link:
        identity = self._identity()
        challenge = await self._heard(call)
        if not isinstance(challenge, Challenge):
            raise PeerMismatch(f"{self.address} starts with {type(challenge).__name__}, not Challenge")
        hello = identity.hello(challenge, self._epoch, secrets.token_bytes(NONCE_BYTES))
        await call.write(LINK_CODEC.encode(hello))
        answer = await self._heard(call)
        if isinstance(answer, Refused):
            raise answer.error.error()
        if not isinstance(answer, Welcome):
            raise PeerMismatch(f"{self.address} answered {type(answer).__name__} to Hello")
        identity.check(hello, answer)
        return Link(call, answer, self._times, self._load)  # type: ignore[arg-type]

    async def _heard(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> LinkMessage:
        data: Any = await call.read()
        if data is grpc.aio.EOF:
            raise Unavailable(f"{self.address} closed the link at once: {await call.details()}")
        return LINK_CODEC.decode_one(data)
