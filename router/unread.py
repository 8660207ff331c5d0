"""How much of what was written to a connection its other end has yet to take, and how much it has taken so far.

Asked of the kernel, by Linux's names; elsewhere nothing is known, and nothing seems to wait. `TCP_USER_TIMEOUT` does
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
_COUNT = struct.Struct("=i")


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
    if not _IS_KNOWN:
        return 0
    wire: socket.socket | None = transport.get_extra_info("socket")
    if wire is None:
        return 0
    told = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + _BYTES_ACKED.size)
    return int(_BYTES_ACKED.unpack_from(told, _BYTES_ACKED_AT)[0])
