"""How a taker on the same host knows, after it has read a source's memory, that the source still held it meanwhile.

The source keeps the writing end of a pipe into which nothing is ever written; the taker has the other, which it was
handed. Once the source has closed, also by being killed, a look at the pipe says so, at once and for good: the kernel
closes it before the source goes on. Knows nothing of memory, and not how a descriptor is handed over. Invariant:
`is_held` is never True after the source's `close` has returned.
"""

from __future__ import annotations

import contextlib
import os

from pagewire.core.errors import TransferFailed


class Lifeline:
    """The source's end. `fd` is to be handed to the taker. Raises TransferFailed where there are none left."""

    def __init__(self) -> None:
        try:
            self.fd, self._held = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise TransferFailed(f"no lifeline: {error}") from None
        self._descriptors = contextlib.ExitStack()
        for fd in (self.fd, self._held):
            self._descriptors.callback(os.close, fd)

    def close(self) -> None:
        """Let go; any number of times."""
        self._descriptors.close()


class Hold:
    """The taker's end; takes over the descriptor that it was handed."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        os.set_blocking(fd, False)

    @property
    def is_held(self) -> bool:
        """True while the source has not closed, nor we."""
        if self._fd is None:
            return False
        try:
            os.read(self._fd, 1)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        """Let go; any number of times."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
