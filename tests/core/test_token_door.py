"""A door that is shut hangs up on whoever is on the way in, whatever turn of the loop that is in."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from pagewire.core.token_door import TOKEN_BYTES, TokenDoor

TOKEN = bytes(range(TOKEN_BYTES))


async def come_as_it_is_shut(num_turns: int) -> bool:
    """Show the token, and return whether we got in."""
    door, kept = TokenDoor(), list[socket.socket]()
    listen = functools.partial(socket.create_server, ("127.0.0.1", 0))
    address = door.expect(TOKEN, lambda connection: kept.append(connection.dup()), listen)
    for _ in range(3):
        await asyncio.sleep(0)
    with socket.create_connection(address, timeout=10) as caller:
        caller.sendall(TOKEN)
        for _ in range(num_turns):
            await asyncio.sleep(0)
        door.forget(TOKEN)
        for _ in range(3):
            await asyncio.sleep(0)
        for connection in kept:
            connection.close()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(caller.recv, 1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
    gc.collect()  # what was dropped would be complained of here
    return bool(kept)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_comes_as_the_door_is_shut_is_in_or_hung_up_on(run: Callable[[Coroutine[Any, Any, bool]], bool]) -> None:
    are_in = [run(come_as_it_is_shut(num_turns)) for num_turns in range(16)]
    assert are_in == sorted(are_in)
    assert are_in[-1]
