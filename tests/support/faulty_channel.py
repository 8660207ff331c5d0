"""A gRPC channel that spoils the bulk stream between two real ends: byte-level faults, decided by a script.

Only messages that say which blocks are ready are touched, so greetings and credit work. Proves what the taker makes of
bytes that come wrong, twice, late, out of order or not at all; cannot show what gRPC itself does about a bad network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import grpc

KINDS = (4, 6)  # payload in band, or elsewhere
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


class FaultyCall:
    """A call whose reads go through the channel's plan."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes], channel: FaultyChannel) -> None:
        self._call = call
        self._channel = channel
        self._ready: deque[bytes] = deque()

    async def read(self) -> object:
        while not self._ready:
            message = await self._call.read()
            if not isinstance(message, bytes) or message[5] not in KINDS:
                return message
            await self._channel.flowing.wait()
            self._ready.extend(self._channel.plan(self._channel.num_messages, message))
            self._channel.num_messages += 1
        return self._ready.popleft()

    async def write(self, message: bytes) -> None:
        await self._call.write(message)

    async def details(self) -> str:
        return await self._call.details()

    def cancel(self) -> bool:
        return self._call.cancel()


class FaultyChannel:
    """A channel with a `plan`; while `flowing` is cleared the stream stalls."""

    def __init__(self, channel: grpc.aio.Channel, plan: Plan) -> None:
        self.plan = plan
        self.num_messages = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._channel = channel

    def stream_stream(self, method: str) -> Callable[[], FaultyCall]:
        return lambda: FaultyCall(self._channel.stream_stream(method)(), self)

    async def close(self) -> None:
        await self._channel.close()
