"""Hands a file's descriptor to the one process of this host that shows a one-time token, over a Unix socket.

The socket is abstract, or a file of a directory where processes in other network namespaces find it; it is gone as soon
as the descriptor was handed over, and the connection stays as a line between the two. Knows nothing of what is in the
file, and of those who show no token only that the door keeps them out.
Invariants: the descriptor is handed out once, for reading alone; whoever asked for one has it, or it is closed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket

from pagewire.core.token_door import CONNECT_S, MAX_ASKING, TokenDoor
from pagewire.kvtransfer.transports.host_socket import address_of, remove_abandoned
from pagewire.kvtransfer.transports.line import SocketLine


class DescriptorPost:
    """Listens for who shows `token`, from now until it came or `close`. Raises OSError where there can be no socket.

    `directory` is where the socket lies; empty: nowhere, its address is abstract. `line` goes to whoever showed it.
    """

    def __init__(self, directory: str, fd: int, token: bytes) -> None:
        self.address = address_of(directory, secrets.token_bytes(8))
        self._fd = fd
        self._token = token
        self.line = SocketLine()
        remove_abandoned(directory)
        self._door = TokenDoor()
        self._door.expect(token, self._hand_out, self._listen)

    def close(self) -> None:
        """Stop listening and hang up; any number of times."""
        self._door.forget(self._token)
        self.line.close()

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(self.address)
            listening.listen(MAX_ASKING)
        except OSError:
            listening.close()
            raise
        return listening

    def _hand_out(self, connection: socket.socket) -> None:
        _send(connection, self._fd)
        self.line.attach(connection.dup())


async def fetch_descriptor(address: bytes, token: bytes, line: SocketLine) -> int:
    """Return the descriptor that is handed out there, the caller's to close; `line` goes there then. Raises OSError."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(connection, address)
                await loop.sock_sendall(connection, token)
                await _readable(connection)
        except TimeoutError:
            raise OSError(f"no descriptor within {CONNECT_S} s") from None
        line.attach(connection.dup())
        # Here nobody can be cancelled between the kernel's handing it over and our having it.
        _, fds, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not fds:
            raise OSError("no descriptor came")
        return fds[0]


def _send(connection: socket.socket, fd: int) -> None:
    mine = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    try:
        socket.send_fds(connection, [b"k"], [mine])
    finally:
        os.close(mine)


async def _readable(connection: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
