"""TCP as asyncio's transports show it, over the simulated network: what Redis is spoken to by.

Knows bytes. Invariant: a protocol hears of its connection once, of its end once, and of nothing after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from simulated.loop import PROCESS
from simulated.network import End, Network

CONNECT_S = 20.0


class Transport(asyncio.Transport):
    """See asyncio."""

    def __init__(self, end: End, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._end = end
        self._protocol = protocol
        end.on_message, end.on_end = self._arrived, self._broke

    def write(self, data: Any) -> None:
        """See asyncio."""
        self._end.send(bytes(data))

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._end.is_over

    def close(self) -> None:
        """See asyncio."""
        if not self._end.is_over:
            self._end.close()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """There is no socket."""
        return default

    def pause_reading(self) -> None:
        """Nobody here has so much to say."""

    def resume_reading(self) -> None:
        """Nobody here has so much to say."""

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio."""
        return self._protocol

    def _arrived(self, payload: Any) -> None:
        self._protocol.data_received(payload)

    def _broke(self, reason: str) -> None:
        self._protocol.connection_lost(ConnectionResetError(reason))


def connector(network: Network) -> Callable[..., Any]:
    """Return what a loop's `create_connection` is."""

    async def connect(factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Any:
        end = network.dial(PROCESS.get(), f"{host}:{port}", "redis")
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def heard(_: Any) -> None:
            if not opened.done():
                opened.set_result(None)

        def broke(reason: str) -> None:
            if not opened.done():
                opened.set_exception(ConnectionRefusedError(reason))

        end.on_message, end.on_end = heard, broke
        end.send(b"")  # what a handshake is: the other side answers it with nothing
        await opened
        protocol = factory()
        transport = Transport(end, protocol)
        protocol.connection_made(transport)
        return transport, protocol

    return connect
