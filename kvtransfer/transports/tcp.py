"""The carrier between hosts: messages and blocks over a plain TCP socket of their own, beside the gRPC stream.

    source  card (where we listen, two tokens) ... READY, then the blocks as they lie in the pool: no copy of ours
    taker   connects and shows one token, is shown the other ... READY read -> receive into staging; place = to the pool

A payload is received once its message was read, so nothing lies anywhere that no message names; one that is late is
received and let go. Staging is used again, the last first, so it stays in the cache: a copy out of it that sums is as
cheap as the sum alone of what was received in place, and no claim is open while a slow network delivers.

Knows messages and staging; who may connect is `TokenDoor`'s, how bytes go over a socket `SocketLine`'s. In the clear:
a pod with TLS does not offer it. Invariants: the pool is written within `place` alone, and read until the kernel has
taken what `carry` gave it; what is staged is bounded.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed
from pagewire.kvtransfer.carrier import Carrier, Line, Move
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.transports.line import SocketLine
from pagewire.kvtransfer.transports.rooms import Rooms
from pagewire.kvtransfer.transports.token_door import CONNECT_S, MAX_ASKING, TOKEN_BYTES, TokenDoor
from pagewire.kvtransfer.wire import Ready

NAME = "tcp"
FLOW = Flow(window_bytes=16 << 20, message_bytes=2 << 20)
READ_BYTES = 4 << 10  # of messages at a time: what of the payload comes with one is copied once more
MAX_HOST_BYTES = 255
_COUNT = (1 << 32) - 1
_CARD = struct.Struct(f"<{TOKEN_BYTES}s{TOKEN_BYTES}sH")  # the taker's token, the source's, port | host


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpOptions:
    """`host` is our own address, to listen on, `port` which, 0 for a free one, and `dialled` the name or address under
    which peers find us, `host` where it is empty. `staged_bytes` bounds what a source can make us stage: two windows,
    and more."""

    host: str = "127.0.0.1"
    port: int = 0
    dialled: str = ""
    staged_bytes: int = 64 << 20


def carrier(options: TcpOptions) -> Carrier:
    """Return the carrier of a pod, whose streams share one door."""
    door = TokenDoor()
    return Carrier(
        name=NAME,
        outlet=lambda memory, _: TcpOutlet(memory, options, door),
        inlet=lambda memory, _: TcpInlet(memory, options),
        flow=FLOW,
    )


class TcpOutlet:
    """The source's end; see `Outlet`."""

    announces = True
    lends = False
    checksums = True

    def __init__(self, memory: BlockMemory, options: TcpOptions, door: TokenDoor) -> None:
        self._socket_line = SocketLine(write_flags=socket.MSG_MORE)
        self._memory = memory
        self._options = options
        self._door = door
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._answer = secrets.token_bytes(TOKEN_BYTES)
        self._count = 0  # of messages
        self._is_closed = False

    @property
    def line(self) -> Line:
        """To the one that showed the token."""
        return self._socket_line

    async def open(self, card: bytes) -> bytes:
        """Listen for the one that holds our card. Raises TransferFailed."""
        options = self._options
        try:
            listen = functools.partial(_listening, *await _addresses(options.host, options.port, socket.AI_PASSIVE))
            if self._is_closed:
                raise TransferFailed("closed while it opened")
            port = self._door.expect(self._token, self._enter, listen)[1]
        except OSError as error:
            where = f"{options.host}, port {options.port or 'any'}"
            raise TransferFailed(f"cannot listen on {where}: {error}") from error
        return _CARD.pack(self._token, self._answer, port) + (options.dialled or options.host).encode()

    def tag(self, batch: Batch) -> int:
        """Number the message; see `Outlet`."""
        number, self._count = self._count, (self._count + 1) & _COUNT
        return number

    async def carry(self, batch: Batch) -> None:
        """Send the blocks from where they lie; see `Outlet`."""
        await self._socket_line.write_payload([self._memory.read(block_id) for block_id in batch.block_ids])
        await asyncio.sleep(0)  # a kernel with room takes all of it at once: others have a turn all the same

    def close(self) -> None:
        """Expect nobody any more and hang up; see `Outlet`."""
        self._is_closed = True
        self._door.forget(self._token)
        self._socket_line.close()

    def _enter(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.send(self._answer)
        self._socket_line.attach(connection.dup())


class TcpInlet:
    """The taker's end; see `Inlet`."""

    card = b""
    place_bytes = 4 << 20

    def __init__(self, memory: BlockMemory, options: TcpOptions) -> None:
        self._socket_line = SocketLine(read_bytes=READ_BYTES)
        self._memory = memory
        self._staged = Rooms(_room, max(options.staged_bytes, memory.block_bytes))
        self._count = 0

    @property
    def line(self) -> Line:
        """To the source, which has answered."""
        return self._socket_line

    async def open(self, card: bytes) -> None:
        """Connect to where the card says, show its token, be shown the other. Raises TransferFailed."""
        if not _CARD.size < len(card) <= _CARD.size + MAX_HOST_BYTES:
            raise TransferFailed(f"a card of {len(card)} bytes")
        token, answer, port = _CARD.unpack_from(card)
        try:
            host = card[_CARD.size :].decode()
            async with asyncio.timeout(CONNECT_S):
                self._socket_line.attach(await _connected(host, port, token, answer))
        except TimeoutError:
            raise TransferFailed(f"nobody answered at {host}, port {port}, within {CONNECT_S} s") from None
        except (OSError, ValueError) as error:  # a text that no host name is, too
            raise TransferFailed(f"port {port} of the source cannot be used: {error}") from error

    async def arrived(self, ready: Ready) -> None:
        """Receive the message's blocks; see `Inlet`."""
        await asyncio.sleep(0)  # what came before it is placed now, while it is in the cache
        ahead = (ready.tag - self._count) & _COUNT
        if ahead > _COUNT // 2:
            return  # a message that came twice; its payload came once
        if ahead:
            raise ContractBroken(f"{ahead} messages are missing")
        self._count = (self._count + 1) & _COUNT
        num_bytes = len(ready) * self._memory.block_bytes
        await self._socket_line.read_payload(self._staged.take(ready, num_bytes)[:num_bytes])

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy from staging into the pool; see `Inlet`. Raises IndexError outside the pool."""
        staged = self._staged.of(ready)
        if staged is None:
            raise TransferFailed("nothing came for this message")
        size = self._memory.block_bytes
        return [
            self._memory.write_summed(block_id, staged[position * size : (position + 1) * size], ready.seed(position))
            for position, block_id in moves
        ]

    def done(self, ready: Ready) -> None:
        """The staging of the message may be used again; see `Inlet`."""
        self._staged.give_back(ready)

    def close(self) -> None:
        """Hang up; see `Inlet`."""
        self._socket_line.close()
        self._staged.clear()


def _room(num_bytes: int) -> memoryview:
    return memoryview(bytearray(num_bytes))


async def _addresses(host: str, port: int, flags: int = 0) -> list[tuple[int, Any]]:
    """Family and address of each that `host` has. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]


def _listening(at: tuple[int, Any], *_others: tuple[int, Any]) -> socket.socket:
    family, address = at
    return socket.create_server(address, family=family, backlog=MAX_ASKING)


async def _connected(host: str, port: int, token: bytes, answer: bytes) -> socket.socket:
    """Return a connection to who knows the tokens. Raises OSError, StreamLost."""
    failed: OSError | StreamLost = ConnectionRefusedError("the name has no address")
    for family, address in await _addresses(host, port):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            await _proven(connection, address, token, answer)
        except (OSError, StreamLost) as error:  # a stranger at one address says nothing of the next
            connection.close()
            failed = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failed


async def _proven(connection: socket.socket, address: Any, token: bytes, answer: bytes) -> None:
    """Connect, show `token`, and have seen `answer`. Raises OSError, StreamLost."""
    loop, shown = asyncio.get_running_loop(), b""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await loop.sock_connect(connection, address)
    await loop.sock_sendall(connection, token)
    while len(shown) < len(answer) and (more := await loop.sock_recv(connection, len(answer) - len(shown))):
        shown += more
    if not hmac.compare_digest(shown, answer):
        raise StreamLost("whoever listens there is not the source")
