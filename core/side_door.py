"""The one TCP port of a process for sockets beside its gRPC server, and how to get in there.

Who has a card of it, from a stream that has proven itself, connects with it, once:

    host    invite -> card ...              is shown the token, shows the answer -> has the connection
    guest             card ... connects, shows the token, is shown the answer -> has the connection

In the clear: a process with TLS has none. A connection breaks when its other end has been silent for `SILENCE_S`, idle
or not. Knows nothing of what goes over one. Invariants: nobody gets a connection who has not shown what stands on a
card; the port is open only while somebody is expected.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pagewire.core.token_door import CONNECT_S, MAX_ASKING, TOKEN_BYTES, TokenDoor

MAX_HOST_BYTES = 255
# Longer than a link may be silent, shorter than anybody waits for blocks; of itself the kernel asks an idle end after
# two hours, and waits for one that confirms nothing for a quarter of an hour.
SILENCE_S = 15
_PROBES = 3
_CARD = struct.Struct(f"<{TOKEN_BYTES}s{TOKEN_BYTES}sH")  # the guest's token, the host's answer, the port | the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What one guest needs to get in: where, and what either shows the other."""

    token: bytes
    answer: bytes
    host: str
    port: int

    def to_bytes(self) -> bytes:
        """Return the form that is sent."""
        return _CARD.pack(self.token, self.answer, self.port) + self.host.encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Card:
        """Parse what was sent; raises ValueError on anything that is no card."""
        if not _CARD.size < len(data) <= _CARD.size + MAX_HOST_BYTES:
            raise ValueError(f"a card of {len(data)} bytes")
        token, answer, port = _CARD.unpack_from(data)
        return cls(token=token, answer=answer, host=data[_CARD.size :].decode(), port=port)


class SideDoor:
    """The host's side. `host` is our own address, to listen on, `port` which, 0 for a free one.

    `dialled` is the name or address under which guests find us, `host` where it is empty.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, dialled: str = "") -> None:
        self._host = host
        self._port = port
        self._dialled = dialled or host
        self._door = TokenDoor()

    async def invite(self, enter: Callable[[socket.socket], None], tokens: tuple[bytes, bytes] | None = None) -> Card:
        """Return a card, whose holder's connection `enter` is given; it does not block, and is the taker's to close.

        `tokens` are the guest's and the host's, where both know them without being told. Raises OSError where we
        cannot listen.
        """
        token, answer = tokens or (secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES))
        let_in = functools.partial(_let_in, answer, enter)
        try:
            at = (await _addresses(self._host, self._port, socket.AI_PASSIVE))[0]
            port = self._door.expect(token, let_in, functools.partial(_listening, *at))[1]
        except OSError as error:
            raise OSError(f"cannot listen on {self._host}, port {self._port or 'any'}: {error}") from error
        return Card(token=token, answer=answer, host=self._dialled, port=port)

    def forget(self, card: Card) -> None:
        """Expect its holder no more; any number of times."""
        self._door.forget(card.token)


async def enter_by(card: Card, timeout_s: float = CONNECT_S) -> socket.socket:
    """Return a connection to who made `card`, which does not block. Raises OSError, TimeoutError among them."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _connected(card)
    except TimeoutError:
        raise TimeoutError(f"nobody answered at {card.host}, port {card.port}, within {timeout_s:g} s") from None
    except ValueError as error:  # a text that no host name is
        raise OSError(str(error)) from error


def _let_in(answer: bytes, enter: Callable[[socket.socket], None], connection: socket.socket) -> None:
    _prepare(connection)
    connection.send(answer)
    enter(connection.dup())


def _prepare(connection: socket.socket) -> None:
    """Send at once what is written, and break where the other end is silent: a firewall forgets who is idle."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every_s = SILENCE_S // _PROBES
    for option, value in (
        (socket.TCP_NODELAY, 1), (socket.TCP_USER_TIMEOUT, SILENCE_S * 1000), (socket.TCP_KEEPIDLE, every_s),
        (socket.TCP_KEEPINTVL, every_s), (socket.TCP_KEEPCNT, _PROBES),
    ):  # fmt: skip
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def _addresses(host: str, port: int, flags: int = 0) -> list[tuple[int, Any]]:
    """Family and address of each that `host` has. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]


def _listening(family: int, address: Any) -> socket.socket:
    return socket.create_server(address, family=family, backlog=MAX_ASKING)


async def _connected(card: Card) -> socket.socket:
    failed = OSError(f"{card.host} has no address")
    for family, address in await _addresses(card.host, card.port):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            await _prove(connection, address, card)
        except OSError as error:  # a stranger at one address says nothing of the next
            connection.close()
            failed = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failed


async def _prove(connection: socket.socket, address: Any, card: Card) -> None:
    """Connect, show the token, and have seen the answer. Raises OSError."""
    loop, shown = asyncio.get_running_loop(), b""
    connection.setblocking(False)
    _prepare(connection)
    await loop.sock_connect(connection, address)
    await loop.sock_sendall(connection, card.token)
    while len(shown) < len(card.answer) and (more := await loop.sock_recv(connection, len(card.answer) - len(shown))):
        shown += more
    if not hmac.compare_digest(shown, card.answer):
        raise ConnectionRefusedError(f"whoever listens at {card.host}, port {card.port}, did not write the card")
