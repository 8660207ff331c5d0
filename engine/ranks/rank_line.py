"""Messages between rank 0 and another rank, over a Unix socket: a little-endian u32 length, then so many bytes.

Knows bytes. Invariant: a message is whole or `RankLost` is raised; an end of the other side between two messages is
None.
"""

from __future__ import annotations

import socket
import struct

from pagewire.engine.ranks.rank_lost import RankLost

MAX_BYTES = 1 << 28  # a block table of 8,192 sequences of 8,192 blocks
_LENGTH = struct.Struct("<I")


class RankLine:
    """One end. Whoever sends or receives waits for the socket's own timeout at most, if it has one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def deadline(self, timeout_s: float | None) -> None:
        """From now on no call waits longer."""
        self._socket.settimeout(timeout_s)

    def send(self, data: bytes) -> None:
        """Send one message. Raises RankLost."""
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise RankLost(f"nobody reads at the other end: {error}") from None

    def receive(self) -> bytes | None:
        """Return the next message, None once the other side has closed. Raises RankLost."""
        head = self._exactly(_LENGTH.size)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > MAX_BYTES:
            raise RankLost(f"a message of {length} bytes; at most {MAX_BYTES} are allowed")
        body = self._exactly(length)
        if body is None:
            raise RankLost("the other end closed within a message")
        return body

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _exactly(self, num_bytes: int) -> bytes | None:
        data = bytearray()
        while len(data) < num_bytes:
            try:
                part = self._socket.recv(num_bytes - len(data))
            except TimeoutError:
                raise RankLost("nothing came within the deadline") from None
            except ConnectionResetError:  # it closed with something of ours unread
                part = b""
            except OSError as error:
                raise RankLost(f"nobody speaks at the other end: {error}") from None
            if not part and data:
                raise RankLost("the other end closed within a message")
            if not part:
                return None
            data += part
        return bytes(data)
