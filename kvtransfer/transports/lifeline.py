"""How a taker on the same host knows, after it has read a source's memory, that the source still held it meanwhile.

The source listens on a Unix socket and never accepts; the taker connects. Once the source has closed, also by being
killed, a look at the connection says so, at once and for good: the kernel closes it before the source goes on.
Knows nothing of memory. Invariant: `is_held` is never True after the source's `close` has returned.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.transports.host_socket import address_of, remove_abandoned

NAME_BYTES = 16


class Lifeline:
    """The source's end, under a random name; `directory` is that of its socket, empty for an abstract one.

    Raises TransferFailed where this host gives none.
    """

    def __init__(self, directory: str = "") -> None:
        remove_abandoned(directory)
        self.name = secrets.token_bytes(NAME_BYTES)
        address = address_of(directory, self.name)
        self._path = address if directory else None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(address)
            self._listener.listen(1)
        except OSError as error:
            self._listener.close()
            raise TransferFailed(f"no lifeline: {error}") from None

    def close(self) -> None:
        """Let go; any number of times."""
        self._listener.close()
        if self._path is not None:
            with contextlib.suppress(OSError):  # it is there for who connects: somebody may have removed it since
                os.unlink(self._path)


class Hold:
    """The taker's end. Raises TransferFailed where no source listens under that name there on this host."""

    def __init__(self, name: bytes, directory: str = "") -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.setblocking(False)
        try:
            self._connection.connect(address_of(directory, name))
        except OSError as error:
            self._connection.close()
            raise TransferFailed(f"the source is not on this host: {error}") from None

    @property
    def is_held(self) -> bool:
        """True while the source has not closed."""
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Let go; any number of times."""
        self._connection.close()
