"""What the kernel knows of a connection: what its other end has yet to take and has taken, when it last sent, and
whether it is still there.

By Linux's names; elsewhere nothing is known, and nothing seems to wait. `TCP_USER_TIMEOUT` does
not do: to Linux a window too small for the next segment is a closed one, so that it gives up whoever reads slowly with
small windows as if nothing were read (`tcp_ack_probe`).
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios

_IS_KNOWN = sys.platform == "linux"
_BYTES_ACKED = struct.Struct("=Q")  # `tcpi_bytes_acked`, since Linux 4.1
_BYTES_ACKED_AT = 120
_MS_SINCE_RECEIVED = struct.Struct("=I")  # `tcpi_last_data_recv`
_MS_SINCE_RECEIVED_AT = 52
_COUNT = struct.Struct("=i")
_STATE = struct.Struct("=B")  # `tcpi_state`
_OVER = (7, 8)  # TCP_CLOSE, TCP_CLOSE_WAIT


def num_waiting(transport: asyncio.Transport) -> int:
    """Return the bytes that lie here or in the kernel, the other end having taken none of them."""
    if not _IS_KNOWN:
        return 0
    wire: socket.socket | None = transport.get_extra_info("socket")
    if wire is None:  # TLS has let go of a connection that is lost already
        return 0
    (in_kernel,) = _COUNT.unpack(fcntl.ioctl(wire.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size)))
    return transport.get_write_buffer_size() + int(in_kernel)


def num_taken(transport: asyncio.Transport) -> int:
    """Return the bytes that the other end has taken since it connected."""
    return _told(transport, _BYTES_ACKED, _BYTES_ACKED_AT)


def since_received_s(transport: asyncio.Transport) -> float:
    """Return for how many seconds the last of what the other end sent has been here, to the millisecond."""
    return _told(transport, _MS_SINCE_RECEIVED, _MS_SINCE_RECEIVED_AT) / 1e3


def is_over(transport: asyncio.Transport) -> bool:
    """Return whether the other end has closed the connection, which nobody hears of who does not read."""
    return _told(transport, _STATE, 0) in _OVER


def _told(transport: asyncio.Transport, what: struct.Struct, at: int) -> int:
    wire: socket.socket | None = transport.get_extra_info("socket") if _IS_KNOWN else None
    if wire is None:
        return 0
    return int(what.unpack_from(wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, at + what.size), at)[0])
