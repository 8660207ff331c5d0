"""The way to one router, by the client's certificates as they are now.

A gRPC channel shows for its life what it was made with, so once a file has changed there is another for the calls that
begin from then on; the one from before is forgotten, and so closed, with the last call on it. Knows nothing of what is
asked. Invariants: files that cannot be used leave the channel from before; when it is closed, so is every channel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from pagewire.client.channel import Target, callables, options
from pagewire.client.retry import Timeout
from pagewire.client.security import Tls
from pagewire.core.errors import Cancelled
from pagewire.core.renewed import Renewed

Methods = Mapping[str, Callable[..., Any]]
"""gRPC's callables for the methods of the service, by their names."""

PUBLIC = Tls()


class Dial(Protocol):
    """How channels are made: gRPC's module `grpc`, or `grpc.aio`."""

    def secure_channel(self, target: str, credentials: grpc.ChannelCredentials, options: Any) -> Any:
        """Return a channel by TLS."""

    def insecure_channel(self, target: str, options: Any) -> Any:
        """Return one in the clear."""


@dataclass(frozen=True, slots=True, eq=False)
class _Channel:
    grpc: Any
    methods: Methods


class Connection:
    """One router. `tls` counts where it is given, or where the target asks for TLS.

    Threads may share it as far as gRPC's channels may be shared. Raises as `Tls.credentials` does.
    """

    def __init__(self, dial: Dial, target: Target, tls: Tls | None, timeout: Timeout) -> None:
        self._dial = dial
        self._target = target
        self._tls = (tls or PUBLIC) if target.has_tls else tls
        self._options = options(target, timeout, self._tls)
        self._is_closed = False
        self._pid = os.getpid()
        self._current: Renewed[_Channel] = Renewed(self._make, self._tls.files if self._tls is not None else ())
        # By use. Only ever set and popped, which no other thread comes between: a call that was forgotten ends its use
        # from within the garbage collector, where a lock could be held already.
        self._used: dict[object, _Channel] = {}

    def _make(self) -> _Channel:
        if self._tls is None:
            made = self._dial.insecure_channel(self._target.name, options=self._options)
        else:
            made = self._dial.secure_channel(self._target.name, self._tls.credentials(), options=self._options)
        return _Channel(made, callables(made))

    @contextmanager
    def methods(self) -> Iterator[Methods]:
        """Lend the methods, for one call and until it is over.

        Raises Cancelled once it is closed, RuntimeError in a process that was forked while a call was on it: gRPC would
        keep that one waiting for ever, whatever its deadline.
        """
        if self._is_closed:
            raise Cancelled("the client is closed")
        if self._used and self._pid != os.getpid():
            raise RuntimeError("this process was forked while the client had calls: fork before, or spawn")
        use, channel = object(), self._current.now()
        self._used[use] = channel
        try:
            yield channel.methods
        finally:
            self._used.pop(use, None)

    def close(self) -> list[Any]:
        """Close every channel, and so cancel the calls that are under way; return what gRPC's own `close` does."""
        self._is_closed = True
        return [channel.grpc.close() for channel in {self._current.last(), *self._used.copy().values()}]
