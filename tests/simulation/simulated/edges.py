"""What a process asks of its machine, answered by the world: time, chance, gRPC, and ports for metrics.

The order of a set is an answer too, where it follows from where objects lie in memory: those of the product's classes
that are put into sets go by the number in which they came. The product is not told: `installed` puts the world's
answers in the standard library's and gRPC's places, and takes them out again. Knows no process.

Invariant: within a world nothing is read from the real machine that could decide.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import grpc

from pagewire.kvtransfer.transports.outgoing_stream import OutgoingStream
from pagewire.router.inbox import Inbox
from pagewire.serving.http_port import HttpPort
from pagewire.serving.link import Link
from simulated.loop import SimulatedLoop
from simulated.network import Network
from simulated.rpc import Channel, Server

IN_SETS = (Link, Inbox, OutgoingStream)


class _Page:
    """A port for metrics that nobody asks."""

    port = 2

    def close(self) -> None:
        """Nothing is open."""


@contextlib.contextmanager
def installed(loop: SimulatedLoop, network: Network, draw: random.Random) -> Iterator[None]:
    """Answer for the machine while a world runs."""
    chance = random.Random(draw.getrandbits(64))

    def channel(address: str, options: Any = None) -> Channel:
        return Channel(network, address)

    def server(*_: Any, **__: Any) -> Server:
        return Server(network)

    answers: list[tuple[object, str, object]] = [
        (time, "monotonic", lambda: loop.current.now()),
        (time, "perf_counter", lambda: loop.current.now()),
        (time, "time", lambda: loop.current.wall()),
        (os, "urandom", chance.randbytes),
        (secrets, "token_bytes", lambda n=32: chance.randbytes(n)),
        (secrets, "token_hex", lambda n=32: chance.randbytes(n).hex()),
        (secrets, "randbits", chance.getrandbits),
        (secrets, "randbelow", chance.randrange),
        (uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4)),
        (random, "uniform", chance.uniform),
        (grpc.aio, "insecure_channel", channel),
        (grpc.aio, "server", server),
        (HttpPort, "open", classmethod(lambda cls, *_, **_settings: _Page())),
        *((each, "__hash__", _numbering()) for each in IN_SETS),
    ]
    with contextlib.ExitStack() as stack:
        for where, name, answer in answers:
            stack.enter_context(mock.patch.object(where, name, answer))
        yield


def _numbering() -> Callable[[Any], int]:
    """Return a `__hash__` that counts."""
    numbers = itertools.count()

    def number(self: Any) -> int:
        known = self.__dict__.get("_number")
        if known is None:
            known = self._number = next(numbers)
        return int(known)

    return number
