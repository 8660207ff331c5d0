"""The way to one router, by the client's certificates as they are now.

A gRPC channel shows for its life what it was made with, so once a file has changed there is another for the calls that
begin from then on. Those under way keep the one they have; gRPC closes it behind the last of them, when nobody holds it
any more. Knows nothing of what is asked. Invariant: files that cannot be used leave the channel from before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

import grpc

from pagewire.client.channel import Target, callables, options
from pagewire.client.retry import Timeout
from pagewire.client.security import Tls
from pagewire.core.renewed import Renewed

PUBLIC = Tls()


class Dial(Protocol):
    """How channels are made: gRPC's module `grpc`, or `grpc.aio`."""

    def secure_channel(self, target: str, credentials: grpc.ChannelCredentials, options: Any) -> Any:
        """Return a channel by TLS."""

    def insecure_channel(self, target: str, options: Any) -> Any:
        """Return one in the clear."""


@dataclass(frozen=True, slots=True)
class _Dialled:
    channel: Any
    methods: Mapping[str, Callable[..., Any]]


class Connection:
    """One router, for any thread. `tls` counts where it is given, or where the target asks for TLS.

    Raises as `Tls.credentials` does.
    """

    def __init__(self, dial: Dial, target: Target, tls: Tls | None, timeout: Timeout) -> None:
        shown = (tls or PUBLIC) if target.has_tls else tls

        def dialled() -> _Dialled:
            offered = options(timeout, shown)
            if shown is None:
                channel = dial.insecure_channel(target.name, options=offered)
            else:
                channel = dial.secure_channel(target.name, shown.credentials(), options=offered)
            return _Dialled(channel, callables(channel))

        self._dialled = Renewed(dialled, shown.files if shown is not None else ())
        self._streams: WeakSet[Any] = WeakSet()  # on any channel of this connection
        self._lock = threading.Lock()

    def call(self, method: str, request: Any, **how: Any) -> Any:
        """Return what gRPC's callable does, the answer or what to await for it. `how` is its `timeout` and so on."""
        return self._dialled.now().methods[method](request, **how)

    def stream(self, method: str, request: Any, **how: Any) -> Any:
        """Return a call whose answer comes in pieces."""
        call = self.call(method, request, **how)
        with self._lock:
            self._streams.add(call)
        return call

    def close(self) -> Any:
        """Cancel what is under way; return what gRPC's own `close` does."""
        with self._lock:
            streams = list(self._streams)
        for each in streams:
            each.cancel()
        return self._dialled.now().channel.close()
