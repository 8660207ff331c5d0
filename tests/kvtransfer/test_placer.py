"""A placer settles every claim, whatever breaks while it verifies, and none before it can be judged."""

from __future__ import annotations

import asyncio

import pytest
from transport_rigs import BLOCK_BYTES, CARRIERS, NUM_BLOCKS, Recorder, RecordingSink, pool

from pagewire.core.errors import TransferFailed, TransferTimeout
from pagewire.kvtransfer import wire
from pagewire.kvtransfer.inbox import Inbox
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.placer import Placer
from pagewire.kvtransfer.transport import ShipmentKey, TransferCounters
from pagewire.kvtransfer.wire import Ready, Sums

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
    inbox = Inbox(BLOCK_BYTES, NUM_BLOCKS * BLOCK_BYTES, TransferCounters(), lambda _: None)
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


class Placing:
    """A placer over the carrier between two pools of this process; messages and checksums are put into its inbox."""

    def __init__(self, place_s: float = 5.0) -> None:
        self.source, self.target = pool(filled=True), pool(filled=False)
        carrier = CARRIERS["local"]()
        self.outlet = carrier.outlet(self.source, "D")
        self.inlet = carrier.inlet(self.target, "P")
        self.recorder = Recorder()
        self.sink = RecordingSink(self.recorder)
        self.inbox = Inbox(BLOCK_BYTES, NUM_BLOCKS * BLOCK_BYTES, TransferCounters(), lambda _: None)
        self.inbox.register(KEY, self.sink)
        self.placer = Placer(self.inbox, self.inlet, self.target, place_s)

    async def announce(self, *indices: range) -> None:
        """Messages whose checksums follow; each block's id is its index."""
        await self.inlet.open(await self.outlet.open(b""))
        for each in indices:
            self.inbox.accept(Ready(KEY, each.start, (), block_ids=tuple(each), sums_follow=True))

    def tell(self, indices: range, *, wrong: int | None = None) -> None:
        """The checksums of one of them, one of which may be wrong."""
        sums = wire.checksums(KEY, indices, [self.source.read(index) for index in indices])
        self.inbox.summed(Sums(KEY, indices, tuple(s ^ (at == wrong) for at, s in zip(indices, sums, strict=True))))
        self.placer.wake()


async def test_a_block_is_judged_when_its_checksum_has_come() -> None:
    placing = Placing()
    await placing.announce(range(3), range(3, 5))
    running = asyncio.create_task(placing.placer.run())
    await placing.recorder.until(lambda: placing.sink.open == set(range(5)))
    assert placing.target.read(4) == placing.source.read(4), "it is written while its checksum is computed"
    placing.tell(range(3, 5))
    await asyncio.sleep(0.02)
    assert placing.sink.placed == [], "in the order in which they came"
    placing.tell(range(3), wrong=1)
    await placing.recorder.until(lambda: not placing.sink.open)
    assert (placing.sink.placed, placing.sink.spoilt) == ([0, 2, 3, 4], [1])
    placing.tell(range(3))  # again: they are of nothing
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_checksums_that_do_not_come_end_the_stream_and_every_claim() -> None:
    placing = Placing(place_s=0.05)
    await placing.announce(range(2))
    with pytest.raises(TransferTimeout, match="checksums of 2 blocks"):
        await asyncio.wait_for(placing.placer.run(), 5)
    assert placing.sink.open == {0, 1}
    placing.placer.give_up()
    assert (placing.sink.open, placing.sink.spoilt) == (set(), [0, 1])


async def test_a_later_placement_that_fails_ends_the_stream_though_the_first_is_waited_for() -> None:
    placing = Placing()
    ended: list[int] = []

    async def place(ready: Ready, _moves: object) -> tuple[int, ...]:
        if ready.first_block == 0:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(0)
        raise TransferFailed("the copy failed")

    placing.inlet.place = place  # type: ignore[method-assign,assignment]
    placing.inlet.max_places = 2  # type: ignore[misc]
    await placing.announce(range(2), range(2, 4))
    with pytest.raises(TransferFailed, match="the copy failed"):
        await asyncio.wait_for(placing.placer.run(), 5)
    assert ended == [0], "nothing is written any more when it is over"
    placing.placer.give_up()
    assert (placing.sink.open, placing.sink.spoilt) == (set(), [0, 1, 2, 3])
