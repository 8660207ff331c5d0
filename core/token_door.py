"""A listening socket for those who hold a one-time token: open while somebody is expected, one for all of them.

Who connects and says nothing is dropped after `CONNECT_S`, or sooner where there are too many such: the oldest first.
Knows nothing of what goes over a connection, and of sockets only that they listen. Invariants: a token is good once,
and only while it is expected; nobody who shows none gets a byte; a socket listens only while somebody is expected.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
CONNECT_S = 4.0
MAX_ASKING = 16  # at a time

Enter = Callable[[socket.socket], None]
"""Given the connection, which does not block and is closed when this returns: whoever keeps it duplicates it."""


class TokenDoor:
    """The door of one pod, or of one stream. A socket that has a file is unlinked when it is closed."""

    def __init__(self) -> None:
        self._expected: dict[bytes, Enter] = {}
        self._listening: socket.socket | None = None
        self._asking: dict[asyncio.Task[None], None] = {}

    def expect(self, token: bytes, enter: Enter, listen: Callable[[], socket.socket]) -> Any:
        """Let in who shows `token`, until `forget`; return the address. `listen` is called where nobody was expected.

        Raises OSError where there can be no socket.
        """
        if self._listening is None:
            self._listening = listen()
            self._listening.setblocking(False)
            # Not by `sock_accept`: who is accepted as that is cancelled would be lost, and left open.
            asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)
        self._expected[token] = enter
        return self._listening.getsockname()

    def forget(self, token: bytes) -> None:
        """Expect that one no more; any number of times."""
        if self._expected.pop(token, None) is not None and not self._expected:
            self._shut()

    def _shut(self) -> None:
        listening, self._listening = self._listening, None
        if listening is None:
            return
        asyncio.get_running_loop().remove_reader(listening)
        for answering in self._asking:
            answering.cancel()
        address = listening.getsockname()
        listening.close()
        if isinstance(address, str) and address:
            Path(address).unlink(missing_ok=True)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # who connected is gone
            return
        except OSError as error:
            log.warning("nobody is let in at %s any more: %s", listening.getsockname(), error)
            return self._shut()
        answering = asyncio.create_task(self._answer(connection))
        self._asking[answering] = None
        answering.add_done_callback(functools.partial(self._answered, connection))
        if len(self._asking) > MAX_ASKING:
            next(iter(self._asking)).cancel()

    async def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            connection.setblocking(False)
            shown = await _shown(connection)
            for token, enter in self._expected.items():
                if hmac.compare_digest(shown, token):
                    self.forget(token)  # first: it is good once, whatever comes of it
                    return enter(connection)

    def _answered(self, connection: socket.socket, answering: asyncio.Task[None]) -> None:
        connection.close()  # here, since a task may be cancelled before it began
        del self._asking[answering]


async def _shown(connection: socket.socket) -> bytes:
    loop, shown = asyncio.get_running_loop(), b""
    async with asyncio.timeout(CONNECT_S):
        while len(shown) < TOKEN_BYTES and (more := await loop.sock_recv(connection, TOKEN_BYTES - len(shown))):
            shown += more
    return shown
