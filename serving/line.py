"""What the frames of a link go over once it is greeted.

The gRPC stream that the greeting went over, or a socket beside it: a message through gRPC wakes two threads at each
end, one over a socket wakes the reader alone. Knows no frames: what is queued at one time may go out together, since
frames that are joined are frames. Invariants: all comes once and in order; a line that ends says so at both ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

import grpc

log = logging.getLogger(__name__)

# What gRPC says on a stream whose other end is gone, or whose server stops.
BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)
MAX_FRAME_BYTES = 64 << 20
MAX_BATCH_BYTES = 1 << 20  # of frames that go out as one message of gRPC, unless a single one is larger
CLOSED = "the peer closed it"
_LENGTH = struct.Struct("<I")


class Line(Protocol):
    """One end of it."""

    @property
    def unsent_bytes(self) -> int:
        """What is queued and not yet gone."""
        ...

    def send(self, data: bytes) -> None:
        """Queue `data` behind what is queued; nothing once the line has ended."""
        ...

    async def finish(self) -> None:
        """Send nothing that comes later, and return when what was queued has gone, or the line has ended."""
        ...

    async def carry(self, on_data: Callable[[bytes], None]) -> str:
        """Hand out what comes until the line ends, and return why it did."""
        ...

    def close(self) -> None:
        """Hang up at once; what is unsent is dropped."""
        ...


class _Stream(Protocol):
    """What gRPC's two ends of a bidirectional stream have in common."""

    async def read(self) -> Any: ...  # bytes, or grpc.aio.EOF

    async def write(self, data: bytes) -> None: ...


class LinkStream:
    """The stream itself: the call at who dialled, its context at the other end."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._outbox: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._written = asyncio.Event()  # all that was queued went out
        self._written.set()
        self._is_finished = False
        self.unsent_bytes = 0

    def send(self, data: bytes) -> None:
        """See `Line`."""
        if self._is_finished:
            return
        self._outbox.append(data)
        self.unsent_bytes += len(data)
        self._written.clear()
        self._filled.set()

    async def finish(self) -> None:
        """See `Line`."""
        self._is_finished = True
        await self._written.wait()

    async def carry(self, on_data: Callable[[bytes], None]) -> str:
        """See `Line`."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        works = (self._read(on_data), self._write())
        tasks = [asyncio.create_task(_until_it_ends(work, ended)) for work in works]
        try:
            return await ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._written.set()

    def close(self) -> None:
        """See `Line`. The stream's own end is that of its call, which is not ours."""

    async def _read(self, on_data: Callable[[bytes], None]) -> str:
        while (data := await self._stream.read()) is not grpc.aio.EOF:
            on_data(data)
        return CLOSED

    async def _write(self) -> str:
        while True:
            while self._outbox:
                data = self._batch()
                await self._stream.write(data)
                self.unsent_bytes -= len(data)
            self._written.set()
            self._filled.clear()
            await self._filled.wait()

    def _batch(self) -> bytes:
        """Take what goes out next: a message costs gRPC more than a frame costs us."""
        batch = [self._outbox.popleft()]
        num_bytes = len(batch[0])
        while self._outbox and num_bytes + len(self._outbox[0]) <= MAX_BATCH_BYTES:
            batch.append(self._outbox.popleft())
            num_bytes += len(batch[-1])
        return b"".join(batch)


class LinkSocket(asyncio.Protocol):
    """A socket, each message behind its length. What comes before `carry` waits for it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._due = _LENGTH.size  # bytes, until which what was received is no whole message
        self._on_data: Callable[[bytes], None] | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._is_finished = False

    @classmethod
    async def over(cls, connection: socket.socket) -> LinkSocket:
        """Return the line over a connection, which it takes over."""
        _, line = await asyncio.get_running_loop().create_connection(cls, sock=connection)
        return line

    @property
    def unsent_bytes(self) -> int:
        """See `Line`."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, data: bytes) -> None:
        """See `Line`."""
        if self._transport is not None and not (self._is_finished or self._transport.is_closing()):
            self._transport.write(_LENGTH.pack(len(data)) + data)

    async def finish(self) -> None:
        """See `Line`. Returns when the other end has hung up too.

        To close ours while something lies here unread would take from the other end what we sent.
        """
        if self._transport is not None and not (self._is_finished or self._transport.is_closing()):
            self._is_finished = True
            self._transport.write_eof()
        await asyncio.shield(self._ended)

    async def carry(self, on_data: Callable[[bytes], None]) -> str:
        """See `Line`."""
        self._on_data = on_data
        self._hand_out()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """See `Line`."""
        self._end("it was closed here")
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if not self._ended.done():
            self._received += data
            self._hand_out()

    def _hand_out(self) -> None:
        received, at = self._received, 0
        while self._on_data is not None and len(received) - at >= self._due:
            (length,) = _LENGTH.unpack_from(received, at)
            if length > MAX_FRAME_BYTES:
                return self._end(f"a message of {length} bytes came, where {MAX_FRAME_BYTES} may")
            self._due = _LENGTH.size + length
            if len(received) - at >= self._due:
                data = bytes(memoryview(received)[at + _LENGTH.size : at + self._due])
                at, self._due = at + self._due, _LENGTH.size
                self._on_data(data)
        del received[:at]

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._end(CLOSED if error is None else why(error))

    def _end(self, reason: str) -> None:
        self._on_data = None
        if not self._ended.done():
            self._ended.set_result(reason)


async def _until_it_ends(work: Coroutine[None, None, str], ended: asyncio.Future[str]) -> None:
    try:
        reason = await work
    except BROKEN as error:
        reason = why(error)
    except Exception as error:
        log.exception("a link's stream broke as nobody foresaw")
        reason = why(error)
    if not ended.done():
        ended.set_result(reason)


def why(error: BaseException) -> str:
    """Return what ended a stream, in words."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
