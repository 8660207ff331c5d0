"""What the messages of a bulk stream go over once it is greeted; see `Line`.

The gRPC stream that the greeting went over, unless the carrier has a shorter way between the two processes: a message
through gRPC wakes two threads at each end, one over a socket of their own wakes the reader. A socket can carry payload
beside the messages, from where it lies to where it is wanted:

    length | message ...   length with its highest bit set | payload ...

Knows nothing of what is in a message. Invariants: a line that ends or breaks says so to whoever reads, at both ends;
payload is read when `write_payload` has ended no more, and written when `read_payload` has ended no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence

import grpc

from pagewire.core.errors import StreamLost
from pagewire.kvtransfer.wire import MAX_MESSAGE_BYTES, MalformedMessage

READ_BYTES = 1 << 16
WAKE_BYTES = 512 << 10  # of payload: who is woken for each packet spends more on that than on copying
MAX_PARTS = 512  # of one call: the kernel takes 1,024
_LENGTH = struct.Struct("<I")
_IS_PAYLOAD = 1 << 31  # of a length
_MAX_EARLY = 1  # messages between one and its payload: its checksums


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
    """A stream socket, each message behind its length; read and written once it is `attach`ed, each by one task.

    It is read `read_bytes` at a time, where it is messages that come. `write_flags` go with each message that is
    written, as `MSG_MORE` where payload follows each.
    """

    def __init__(self, *, read_bytes: int = READ_BYTES, write_flags: int = 0) -> None:
        self._attached = asyncio.Event()
        self._socket: socket.socket | None = None
        self._read_bytes = read_bytes
        self._write_flags = write_flags
        self._received = bytearray()
        self._early: deque[bytes] = deque()  # messages that came before the payload that was read
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
        if self._early:
            return self._early.popleft()
        try:
            while (message := self._taken()) is None:
                if not await self._receive():
                    return None
        except MalformedMessage:
            await asyncio.sleep(0)  # what came whole before it is worked on first: this ends the stream
            raise
        return message

    async def read_payload(self, into: memoryview) -> None:
        """Return when `into` is filled by the payload that comes next; `read` has what comes before it afterwards.

        Raises MalformedMessage where it is of another length, or does not come, StreamLost.
        """
        while not self._pass_payload_length(into.nbytes):
            if not await self._receive():
                raise StreamLost("the socket beside the stream ended before its payload")
        got = min(into.nbytes, len(self._received))
        into[:got] = self._received[:got]
        del self._received[:got]
        loop = asyncio.get_running_loop()
        with self._in_use() as connection:
            while got < into.nbytes:
                if connection is not None:
                    _wake_at(connection, min(into.nbytes - got, WAKE_BYTES))
                count = await loop.sock_recv_into(connection, into[got:]) if connection is not None else 0
                if not count:
                    raise StreamLost(f"the socket beside the stream ended after {got} bytes of {into.nbytes}")
                got += count
            if connection is not None:
                _wake_at(connection, 1)

    async def write(self, message: bytes) -> None:
        """See `Line`. Raises StreamLost."""
        await self._send((_LENGTH.pack(len(message)), message), self._write_flags)

    async def write_payload(self, parts: Sequence[memoryview]) -> None:
        """Return when the kernel has taken all of them, bytes that lie anywhere. Raises StreamLost."""
        num_bytes = sum(part.nbytes for part in parts)
        await self._send((_LENGTH.pack(_IS_PAYLOAD | num_bytes), *parts), 0)

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

    async def _receive(self) -> bool:
        """Receive more of what messages are made of; False at the end."""
        await self._attached.wait()
        with self._in_use() as connection:
            if connection is None:
                return False
            data = await asyncio.get_running_loop().sock_recv(connection, self._read_bytes)
        self._received += data
        return bool(data)

    async def _send(self, parts: Sequence[bytes | memoryview], flags: int) -> None:
        """Have the kernel take all of it."""
        await self._attached.wait()
        left = deque(memoryview(part) for part in parts)
        with self._in_use() as connection:
            while left:
                if connection is None or self._is_closed:
                    raise StreamLost("the socket beside the stream is closed")
                try:
                    sent = connection.sendmsg(list(itertools.islice(left, MAX_PARTS)), (), flags)
                except BlockingIOError:
                    await _writable(connection)
                    continue
                while left and sent >= left[0].nbytes:
                    sent -= left.popleft().nbytes
                if sent:
                    left[0] = left[0][sent:]

    def _pass_payload_length(self, num_bytes: int) -> bool:
        """Pass the length of a payload, and whole messages before it; False where more has to come."""
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length & _IS_PAYLOAD:
                if length ^ _IS_PAYLOAD != num_bytes:
                    raise MalformedMessage(f"{length ^ _IS_PAYLOAD} bytes of payload where {num_bytes} were announced")
                del self._received[: _LENGTH.size]
                return True
            if len(self._early) == _MAX_EARLY:
                raise MalformedMessage("messages where payload was announced")
            message = self._taken()
            if message is None:
                return False
            self._early.append(message)
        return False

    def _taken(self) -> bytes | None:
        """Take a message off what was received; None where it is not whole."""
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length & _IS_PAYLOAD:
            raise MalformedMessage(f"{length ^ _IS_PAYLOAD} bytes of payload that nothing announced")
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


def _wake_at(connection: socket.socket, num_bytes: int) -> None:
    """From now on have whoever waits for TCP woken when so much is there, or the end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)


async def _writable(connection: socket.socket) -> None:
    loop, writable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(connection, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(connection)
