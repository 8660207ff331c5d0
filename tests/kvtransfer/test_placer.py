"""A placer settles every claim, whatever breaks while it verifies."""

from __future__ import annotations

import asyncio

import pytest
from transport_rigs import BLOCK_BYTES, CARRIERS, Recorder, RecordingSink, pool

from pagewire.kvtransfer import wire
from pagewire.kvtransfer.inbox import Inbox
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.placer import Placer
from pagewire.kvtransfer.transport import ShipmentKey, TransferCounters
from pagewire.kvtransfer.wire import Ready

KEY = ShipmentKey(1, 1)


class Unreadable(PoolMemory):
    """A pool that can be written, as one on a device can whose copy back fails."""

    def read(self, block_id: int) -> memoryview:
        raise RuntimeError("the device is gone")


async def test_what_cannot_be_verified_is_given_up_with_its_stream() -> None:
    source, target = pool(filled=True), Unreadable(
        memoryview(bytearray(4 * BLOCK_BYTES)), block_bytes=BLOCK_BYTES, num_blocks=4
    )  # fmt: skip
    inlet = CARRIERS["grpc"]().inlet(target, "P")
    place = inlet.place
    inlet.place = lambda ready, moves: _without_sums(place(ready, moves))  # type: ignore[method-assign]
    sink = RecordingSink(Recorder())
    inbox = Inbox(BLOCK_BYTES, TransferCounters(), lambda _: None)
    inbox.register(KEY, sink)
    blocks = [source.read(index) for index in (0, 1)]
    inbox.accept(Ready(KEY, 0, tuple(wire.checksums(KEY, range(2), blocks)), payloads=tuple(blocks)))
    placer = Placer(inbox, inlet, target, 5.0)
    with pytest.raises(RuntimeError, match="the device is gone"):
        await asyncio.wait_for(placer.run(), 5)
    assert sink.open == {0, 1}
    placer.give_up()
    assert (sink.open, sink.placed, sink.spoilt) == (set(), [], [0, 1])


async def _without_sums(placing: object) -> tuple[int, ...]:
    await placing  # type: ignore[misc]
    return ()
