"""A gRPC channel that spoils the bulk stream between two real ends: byte-level faults, decided by a script.

Only messages that say which blocks are ready are touched, or those told instead, so greetings and credit work. Proves
what the taker makes of bytes that come wrong, twice, late, out of order or not at all; cannot show what gRPC itself
does about a bad network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

import grpc

from pagewire.kvtransfer.carrier import Line
from pagewire.kvtransfer.transports.stream_receiver import Dial
from pagewire.kvtransfer.wire import Kind

KINDS = (Kind.BLOCKS, Kind.READY)
Plan = Callable[[int, bytes], list[bytes]]
"""Given the number of a message of blocks (from 0, over all streams) and its bytes, what the receiver reads instead."""


def corrupt(*numbers: int, at: int = -1) -> Plan:
    """Flip a bit of those messages, in the last byte unless told otherwise."""

    def plan(number: int, message: bytes) -> list[bytes]:
        if number not in numbers:
            return [message]
        spoilt = bytearray(message)
        spoilt[at] ^= 0x10
        return [bytes(spoilt)]

    return plan


def duplicate(number: int, message: bytes) -> list[bytes]:
    """Everything comes twice."""
    return [message, message]


def reorder(*numbers: int) -> Plan:
    """Those messages come after their successors."""
    held: list[bytes] = []

    def plan(number: int, message: bytes) -> list[bytes]:
        if number in numbers:
            held.append(message)
            return []
        late, held[:] = list(held), []
        return [message, *late]

    return plan


def swallow(*numbers: int) -> Plan:
    """Those messages never come."""
    return lambda number, message: [] if number in numbers else [message]


class Spoiling:
    """A `plan` for the messages of those `kinds`, of all streams; while `flowing` is cleared they stall."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kinds: tuple[int, ...] = KINDS
        self.num_messages = 0
        self.flowing = asyncio.Event()
        self.flowing.set()

    def line(self, line: Line) -> FaultyLine:
        """Return a carrier's own line, with this plan."""
        return FaultyLine(line, self)


class FaultyReads:
    """The messages of one stream, `read` one after another, as the plan has them."""

    def __init__(self, read: Callable[[], Awaitable[object]], spoiling: Spoiling) -> None:
        self._read = read
        self._spoiling = spoiling
        self._ready: deque[bytes] = deque()

    async def read(self) -> object:
        while not self._ready:
            message = await self._read()
            if not isinstance(message, bytes) or message[5] not in self._spoiling.kinds:
                return message
            await self._spoiling.flowing.wait()
            self._ready.extend(self._spoiling.plan(self._spoiling.num_messages, message))
            self._spoiling.num_messages += 1
        return self._ready.popleft()


class FaultyCall:
    """A call whose reads go through the plan."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes], spoiling: Spoiling) -> None:
        self._call = call
        self.read = FaultyReads(call.read, spoiling).read
        self.write, self.details, self.cancel = call.write, call.details, call.cancel
        self.add_done_callback, self.done = call.add_done_callback, call.done


class FaultyLine:
    """A carrier's own line, the same way."""

    def __init__(self, line: Line, spoiling: Spoiling) -> None:
        self._reads = FaultyReads(line.read, spoiling)
        self.write = line.write

    async def read(self) -> bytes | None:
        message = await self._reads.read()
        return message if isinstance(message, bytes) else None


class FaultyPath(Spoiling):
    """Channels that `dial` opens, one after another, and whose streams are spoilt by one plan."""

    def __init__(self, dial: Dial, plan: Plan) -> None:
        super().__init__(plan)
        self._dial = dial

    def dial(self) -> grpc.aio.Channel:
        return cast("grpc.aio.Channel", _FaultyChannel(self._dial(), self))


class _FaultyChannel:
    def __init__(self, channel: grpc.aio.Channel, spoiling: Spoiling) -> None:
        self._channel = channel
        self._spoiling = spoiling
        self.close = channel.close

    def stream_stream(self, method: str) -> Callable[[], FaultyCall]:
        return lambda: FaultyCall(self._channel.stream_stream(method)(), self._spoiling)
