"""A port for a server that has to be told one before it starts."""

from __future__ import annotations

import contextlib
import random
import socket

BUS = 10_000  # so far above a node's port the nodes of a Redis Cluster talk
# Below those that Linux gives to connections: what is free there stays free until somebody asks for it by number.
CHOICE = range(11_000, 32_768 - BUS)
DRAW = random.SystemRandom()  # processes of tests side by side may all have seeded the other one alike


def free_port() -> int:
    """Return a port of loopback that was free just now, and with it the one `BUS` above it."""
    while True:
        port = DRAW.choice(CHOICE)
        with contextlib.suppress(OSError), socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS))
            return port
