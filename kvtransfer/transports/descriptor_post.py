"""Hands a file's descriptor to the one process of this host that shows a one-time token, over a Unix socket.

The socket is abstract, or a file of a directory where processes in other network namespaces find it; it is gone as soon
as the descriptor was handed over, and the connection stays as a line between the two. Who connects and says nothing
holds up nobody, while such are fewer than are served at a time. Knows nothing of what is in the file.
Invariants: the descriptor is handed out once, for reading alone; whoever asked for one has it, or it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import os
import secrets
import socket
from pathlib import Path

from pagewire.kvtransfer.transports.line import SocketLine

TOKEN_BYTES = 32
CONNECT_S = 4.0
MAX_ASKING = 16  # at a time


class DescriptorPost:
    """Listens for who shows `token`, from now until it came or `close`. Raises OSError where there can be no socket.

    `directory` is where the socket lies; empty: nowhere, its address is abstract. `line` goes to whoever showed it.
    """

    def __init__(self, directory: str, fd: int, token: bytes) -> None:
        self.address = _new_address(directory)
        self._fd = fd
        self._token = token
        self.line = SocketLine()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listening.setblocking(False)
            self._listening.bind(self.address)
            self._listening.listen(MAX_ASKING)
        except OSError:
            self._listening.close()
            raise
        self._serving = asyncio.create_task(self._serve())

    def close(self) -> None:
        """Stop listening and hang up; any number of times."""
        self._stop_listening()
        self.line.close()

    def _stop_listening(self) -> None:
        self._serving.cancel()
        if self._listening.fileno() >= 0:
            # Before the close: until the cancelled accept has run, the loop would take the next file of that number for
            # this one, think that it watches it already, and never wake whoever reads it.
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            if not self.address.startswith(b"\0"):
                Path(os.fsdecode(self.address)).unlink(missing_ok=True)

    async def _serve(self) -> None:
        loop, asking = asyncio.get_running_loop(), asyncio.Semaphore(MAX_ASKING)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asking.acquire()
                connection, _ = await loop.sock_accept(self._listening)
                answering = tasks.create_task(self._answer(connection))
                answering.add_done_callback(functools.partial(_answered, connection, asking))

    async def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            connection.setblocking(False)
            if hmac.compare_digest(await _shown(connection), self._token):
                _send(connection, self._fd)
                self.line.attach(connection.dup())
                self._stop_listening()


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


async def _shown(connection: socket.socket) -> bytes:
    loop, shown = asyncio.get_running_loop(), b""
    async with asyncio.timeout(CONNECT_S):
        while len(shown) < TOKEN_BYTES and (more := await loop.sock_recv(connection, TOKEN_BYTES - len(shown))):
            shown += more
    return shown


def _answered(connection: socket.socket, asking: asyncio.Semaphore, _task: asyncio.Task[None]) -> None:
    connection.close()  # here, since a task may be cancelled before it began
    asking.release()


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


def _new_address(directory: str) -> bytes:
    name = f"pagewire-{secrets.token_hex(8)}"
    return os.fsencode(Path(directory) / name) if directory else b"\0" + name.encode()
