"""Who dials a pod that is not there stops when told, whenever that comes: else a drained pod would never end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine

import pytest
from transport_rigs import CountedDial

from pagewire.core.messages import Role
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import TransportTimes
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.serving.handshake import Identity
from pagewire.serving.link import LinkEvents, LinkTimes
from pagewire.serving.link_dialer import LinkDialer

NUM_TIMES = 400
Dialler = Callable[[CountedDial, str], Coroutine[None, None, None]]


def dial_link(_dial: CountedDial, address: str) -> Coroutine[None, None, None]:
    events = LinkEvents(on_message=lambda link, message: None, on_up=lambda link: None, on_down=lambda link: None)
    who = Identity(peer_id="d", incarnation="1", role=Role.DECODE, secret=b"s")
    return LinkDialer(
        address, lambda: who, events, times=LinkTimes(reconnect_min_s=0.0005, reconnect_max_s=0.001)
    ).run()


def dial_stream(dial: CountedDial, _address: str) -> Coroutine[None, None, None]:
    receiver = StreamReceiver(
        dial,
        pod_id="d",
        source_id="p",
        secret=b"s",
        memory=PoolMemory(memoryview(bytearray(64)), block_bytes=64, num_blocks=1),
        on_lost=lambda peer_id, keys, error: None,
        carriers=(GRPC,),
        times=TransportTimes(reconnect_min_s=0.0005, reconnect_max_s=0.001),
    )
    return receiver.run()


@pytest.mark.parametrize("dial", [dial_link, dial_stream])
async def test_a_dialler_ends_when_it_is_cancelled(dial: Dialler) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        counted = CountedDial(address)
        for number in range(NUM_TIMES):
            dialling = asyncio.create_task(dial(counted, address))
            await asyncio.sleep(number % 60 * 1e-4)  # another moment each time
            dialling.cancel()
            async with asyncio.timeout(10):
                await asyncio.gather(dialling, return_exceptions=True)
        assert counted.num_closed == counted.num_opened >= (NUM_TIMES // 2 if dial is dial_stream else 0)
