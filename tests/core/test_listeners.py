"""Whoever a server has accepted when it is stopped comes to its protocol, whatever turn of the loop that is in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from pagewire.core.listeners import accepted_last, stop_accepting

NUM_TURNS = 8  # from the kernel to `connection_made` there are fewer


class Greeter(asyncio.Protocol):
    """Says a word to whoever is accepted."""

    def __init__(self, met: list[Any]) -> None:
        self._met = met

    def connection_made(self, transport: Any) -> None:
        self._met.append(transport)
        transport.write(b"!")
        transport.close()


async def heard(num_turns: int, stop: Callable[[asyncio.Server, list[Any]], Coroutine[Any, Any, None]]) -> bytes:
    """Return what a caller is told by a server that is stopped so many turns after the call."""
    met: list[Any] = []
    server = await asyncio.get_running_loop().create_server(lambda: Greeter(met), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with socket.create_connection(address, timeout=10) as caller:
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await stop(server, met)
        said = b""
        with contextlib.suppress(ConnectionResetError):  # the kernel had it still
            said = await asyncio.to_thread(caller.recv, 1)
    assert len(met) == len(said)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    return said


async def at_once(server: asyncio.Server, _met: list[Any]) -> None:
    stop_accepting(server)
    stop_accepting(server)  # any number of times


async def and_wait(server: asyncio.Server, met: list[Any]) -> None:
    await accepted_last(server)
    num_met = len(met)
    for _ in range(NUM_TURNS):
        await asyncio.sleep(0)
    assert len(met) == num_met, "all that were accepted had been met"


@pytest.mark.parametrize("stop", [at_once, and_wait])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_was_accepted_is_met_and_who_was_not_is_hung_up_on(run: Any, stop: Any) -> None:
    said = [run(heard(num_turns, stop)) for num_turns in range(NUM_TURNS)]
    assert said == sorted(said), "later turns have accepted more"
    assert said[-1] == b"!"
