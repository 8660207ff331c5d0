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
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

from pagewire.core.errors import PeerMismatch, Unavailable
from pagewire.core.load import Load
from pagewire.core.messages import WIRE_VERSION, Heartbeat, Hello, LinkMessage, Welcome
from pagewire.serving.codec import link_codec
from pagewire.serving.line import MAX_FRAME_BYTES, Line, LinkSocket

log = logging.getLogger(__name__)

METHOD = "/pagewire.link.v1.Links/Connect"
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


MessageCallback = Callable[["Link", LinkMessage], None]


class Link:
    """One epoch of a link, after its handshake."""

    def __init__(self, line: Line, peer: Hello | Welcome, times: LinkTimes, load: Callable[[], Load | None]) -> None:
        self.peer = peer
        self._codec = link_codec(min(peer.wire_version, WIRE_VERSION))
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
        data = self._codec.encode(message)
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
            for message in self._codec.decode(data):
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


def no_load() -> Load | None:
    """Return the load of who has none."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvents:
    """What the owner of links wants to hear. Called on the event loop, in order, and must not block."""

    on_message: MessageCallback
    on_up: Callable[[Link], None]
    on_down: Callable[[Link], None]
