"""The wires of tests leave no connection open, whenever they are cut or end.

A connection takes turns of the loop from the kernel to the wire: the end may come in any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pod_wire import Wire
from slow_proxy import slow_proxy


@pytest.fixture
def target() -> Iterator[Any]:
    """Somebody who is behind the wire."""
    with socket.create_server(("127.0.0.1", 0)) as behind:
        yield SimpleNamespace(port=behind.getsockname()[1])


async def call(port: int, num_turns: int) -> socket.socket:
    caller = socket.create_connection(("127.0.0.1", port), timeout=10)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    return caller


async def assert_hung_up(caller: socket.socket) -> None:
    with caller, contextlib.suppress(ConnectionResetError):  # the kernel had it still
        assert await asyncio.to_thread(caller.recv, 1) == b""


@pytest.mark.parametrize("num_turns", range(16))
async def test_who_comes_to_a_pod_while_its_wire_is_cut_is_hung_up_on(target: Any, num_turns: int) -> None:
    wire = Wire(target)
    await wire.start()
    port = int(wire.address.rpartition(":")[2])
    caller = await call(port, num_turns)
    wire.cut()
    await assert_hung_up(caller)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    await wire.aclose()


@pytest.mark.parametrize("num_turns", range(16))
async def test_who_comes_to_a_wire_as_it_ends_is_hung_up_on(target: Any, num_turns: int) -> None:
    wire = Wire(target)
    await wire.start()
    caller = await call(int(wire.address.rpartition(":")[2]), num_turns)
    await wire.aclose()
    await assert_hung_up(caller)


@pytest.mark.parametrize("num_turns", range(16))
async def test_who_comes_to_a_slow_proxy_as_it_ends_is_hung_up_on(target: Any, num_turns: int) -> None:
    async with slow_proxy(target.port) as proxy:
        caller = await call(proxy.port, num_turns)
    await assert_hung_up(caller)
