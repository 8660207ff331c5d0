"""What the messages of a bulk stream go over once it is greeted; see `Line`.

The gRPC stream that the greeting went over, unless the carrier has a shorter way between two processes of one host: a
message through gRPC wakes two threads at each end, one over a socket of their own wakes the reader. Knows nothing of
what is in a message. Invariant: a line that ends or breaks says so to whoever reads, at both ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator

import grpc

from pagewire.core.errors import StreamLost
from pagewire.kvtransfer.wire import MAX_MESSAGE_BYTES, MalformedMessage

READ_BYTES = 1 << 16
_LENGTH = struct.Struct("<I")


class GrpcLine:
    """The stream itself: the call at its taker, its context at its source."""

    def __init__(
        self, stream: grpc.aio.StreamStreamCall[bytes, bytes] | grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        self._stream = stream

    async def read(self) -> bytes | None:
        """See `Line`."""
        data = await self._stream.read()
        return data if isinstance(data, bytes) else None

    async def write(self, message: bytes) -> None:
        """See `Line`."""
        await self._stream.write(message)


class SocketLine:
    """A stream socket, each message behind its length; read and written once it is `attach`ed, each by one task."""

    def __init__(self) -> None:
        self._attached = asyncio.Event()
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._num_users = 0  # of the socket: it is not closed under them
        self._is_closed = False

    def attach(self, connection: socket.socket) -> None:
        """Take over the socket, which is connected and does not block; closed where the line is."""
        self._socket = connection
        self._attached.set()
        if self._is_closed:
            self.close()

    async def read(self) -> bytes | None:
        """See `Line`. Raises MalformedMessage on a length that no message of ours has, StreamLost."""
        loop = asyncio.get_running_loop()
        while (message := self._taken()) is None:
            await self._attached.wait()
            with self._in_use() as connection:
                data = await loop.sock_recv(connection, READ_BYTES) if connection is not None else b""
            if not data:
                return None
            self._received += data
        return message

    async def write(self, message: bytes) -> None:
        """See `Line`. Raises StreamLost."""
        await self._attached.wait()
        with self._in_use() as connection:
            if connection is None:
                raise StreamLost("the socket beside the stream is closed")
            await asyncio.get_running_loop().sock_sendall(connection, _LENGTH.pack(len(message)) + message)

    def close(self) -> None:
        """Hang up, at both ends; any number of times, also while it is read or written."""
        self._is_closed = True
        if self._socket is None:
            return
        if not self._num_users:
            self._socket.close()
        elif self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):  # the other end was first
                self._socket.shutdown(socket.SHUT_RDWR)  # who waits for it wakes, and closes it

    def _taken(self) -> bytes | None:
        """Take a message off what was received; None where it is not whole."""
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > MAX_MESSAGE_BYTES:
            raise MalformedMessage(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        message = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return message

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[socket.socket | None]:
        """The socket, which nobody closes meanwhile; None where it is closed."""
        self._num_users += 1
        try:
            yield None if self._is_closed else self._socket
        except OSError as error:
            raise StreamLost(f"the socket beside the stream broke: {error}") from error
        finally:
            self._num_users -= 1
            if self._is_closed:
                self.close()
