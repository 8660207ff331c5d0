"""Servers of asyncio that stop without losing whom they have just accepted.

A server that is closed between an accept and the transport made of it, a turn of the loop later, has that transport
fail half made (CPython issue 109564): the connection stays open, its other end waits, and what closes it in the end is
the garbage collector. Knows nothing of what goes over a connection. Invariant: whoever was accepted comes to the
server's protocol.
"""

from __future__ import annotations

import asyncio

_MADE_TURNS = 2  # who was accepted has a transport in the first, and its protocol is told so in the second


def stop_accepting(server: asyncio.Server) -> None:
    """Accept nobody from now on, and close `server` in the loop's next turn; any number of times."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    loop.call_soon(server.close)  # behind the transports of those that were accepted


async def accepted_last(*servers: asyncio.Server) -> None:
    """Close them, and return when their protocols have met the last that was accepted, but for a TLS handshake."""
    for server in servers:
        stop_accepting(server)
    for _ in range(_MADE_TURNS):
        await asyncio.sleep(0)
