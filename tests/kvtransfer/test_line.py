"""A socket's line: whole messages in order, both ways, and an end that both ends hear. Real sockets, in one process."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

import pytest

from pagewire.core.errors import StreamLost
from pagewire.kvtransfer.transports.line import SocketLine
from pagewire.kvtransfer.wire import MAX_MESSAGE_BYTES, MalformedMessage


def a_line() -> tuple[SocketLine, SocketLine]:
    """Both ends."""
    lines = SocketLine(), SocketLine()
    for line, connection in zip(lines, socket.socketpair(), strict=True):
        connection.setblocking(False)
        line.attach(connection)
    return lines


async def test_messages_come_whole_and_in_order_both_ways() -> None:
    ours, theirs = a_line()
    messages = [b"", b"x", os.urandom(3_000_000), *(bytes([number]) * number for number in range(200)), b"last"]

    async def send(line: SocketLine) -> None:
        for message in messages:
            await line.write(message)

    sending = [asyncio.create_task(send(line)) for line in (ours, theirs)]
    for line in (theirs, ours):
        assert [await line.read() for _ in messages] == messages
    await asyncio.gather(*sending)
    ours.close()
    theirs.close()


async def test_a_line_can_be_waited_for_before_it_is_attached() -> None:
    early, (near, far) = SocketLine(), socket.socketpair()
    reading, writing = asyncio.create_task(early.read()), asyncio.create_task(early.write(b"hello"))
    await asyncio.sleep(0)
    near.setblocking(False)
    early.attach(near)
    far.sendall(struct.pack("<I", 2) + b"hi")
    assert await reading == b"hi"
    await writing
    assert far.recv(100) == struct.pack("<I", 5) + b"hello"
    early.close()
    far.close()


async def test_the_end_is_heard_at_both_ends_also_by_who_waits() -> None:
    ours, theirs = a_line()
    waiting = [asyncio.create_task(line.read()) for line in (ours, theirs)]
    await asyncio.sleep(0)
    before = len(os.listdir("/proc/self/fd"))
    ours.close()
    assert await asyncio.gather(*waiting) == [None, None]
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    for line in (ours, theirs):
        line.close()
        assert await line.read() is None
        with pytest.raises(StreamLost, match="closed"):
            await line.write(b"x")


async def test_what_was_sent_before_the_end_still_comes() -> None:
    ours, theirs = a_line()
    await ours.write(b"goodbye")
    ours.close()
    assert [await theirs.read(), await theirs.read()] == [b"goodbye", None]
    with pytest.raises(StreamLost, match="broke"):
        await theirs.write(b"x")
    theirs.close()


async def test_a_length_that_no_message_has_is_malformed() -> None:
    line, (near, far) = SocketLine(), socket.socketpair()
    near.setblocking(False)
    line.attach(near)
    far.sendall(struct.pack("<I", MAX_MESSAGE_BYTES + 1))
    with pytest.raises(MalformedMessage, match="a message of"):
        await line.read()
    line.close()
    far.close()


async def test_a_line_that_is_closed_first_closes_what_it_is_given() -> None:
    line, (near, far) = SocketLine(), socket.socketpair()
    line.close()
    near.setblocking(False)
    line.attach(near)
    assert near.fileno() == -1
    assert far.recv(1) == b""
    far.close()
