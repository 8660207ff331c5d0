"""The contract of `kvtransfer/transport.py`, run against every transport; those of devices where there are some.

Proves placement, isolation of shipments, bounded flight, fencing and loss over the real code of both ends (loopback
gRPC). Cannot prove speed, or behaviour under a real network's losses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sources import Rig, make_rig
from transport_rigs import BLOCK_BYTES, CARRIERS, SMALL, each_of

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.transport import ShipmentKey

WINDOW_BLOCKS = SMALL.window_bytes // BLOCK_BYTES


@pytest.fixture(params=each_of(CARRIERS))
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with make_rig(request.param) as rig:
        yield rig


def blocks(indices: range | list[int]) -> list[tuple[int, int]]:
    return [(index, index) for index in indices]


async def test_blocks_arrive_whole_and_are_counted_once(rig: Rig) -> None:
    sink = rig.sink()
    rig.receiver.register(1, 1, sink)
    await rig.source.send("D", 1, 1, blocks(range(40)))
    await rig.at_taker.until(lambda: len(sink.placed) == 40)
    assert sorted(sink.placed) == list(range(40))
    assert rig.matches(list(range(40)))
    await rig.at_source.until(lambda: sum(len(indices) for _, _, indices in rig.at_source.sent) == 40)
    sent, received = await rig.source.counters(), rig.receiver.counters
    assert (sent["blocks"], sent["bytes"], sent["messages"]) == (40, 40 * BLOCK_BYTES, 20)
    assert (received.blocks, received.bytes, received.messages) == (40, 40 * BLOCK_BYTES, 20)
    assert rig.receiver.counters.dropped == rig.receiver.counters.corrupt == 0


async def test_indices_with_gaps_and_other_block_ids(rig: Rig) -> None:
    sink = rig.sink()
    rig.receiver.register(1, 1, sink)
    await rig.source.send("D", 1, 1, [(3, 13), (7, 11), (8, 5)])
    await rig.at_taker.until(lambda: len(sink.placed) == 3)
    assert sink.placed == [3, 7, 8]
    assert [
        rig.target.read(index) == rig.original.read(block_id) for index, block_id in [(3, 13), (7, 11), (8, 5)]
    ] == [True] * 3


async def test_unknown_and_stale_blocks_are_dropped_and_cost_no_credit(rig: Rig) -> None:
    """Far more than a window of strays, then a shipment: it arrives only if the strays' credit came back."""
    sink = rig.sink()
    rig.receiver.register(1, 2, sink)
    await rig.source.send("D", 1, 1, blocks(range(3 * WINDOW_BLOCKS)))
    await rig.source.send("D", 9, 2, blocks(range(3 * WINDOW_BLOCKS)))
    await rig.source.send("D", 1, 2, blocks([50]))
    await rig.at_taker.until(lambda: sink.placed == [50])
    await rig.at_source.until(
        lambda: sum(len(indices) for _, _, indices in rig.at_source.sent) == 6 * WINDOW_BLOCKS + 1
    )
    assert sink.asked == [50]


async def test_a_block_waits_for_its_id_without_stopping_other_shipments(rig: Rig) -> None:
    unbound, other = rig.sink(is_bound=False), rig.sink()
    rig.receiver.register(1, 1, unbound)
    rig.receiver.register(2, 1, other)
    await rig.source.send("D", 1, 1, blocks(range(30)))
    await rig.source.send("D", 2, 1, blocks(range(30, 60)))
    await rig.at_taker.until(lambda: len(other.placed) == 30)
    assert len(unbound.asked) <= WINDOW_BLOCKS // 2, "what waits is bounded by the shipment's half of the window"
    assert unbound.placed == []
    unbound.is_bound = True
    rig.receiver.retry(1, 1)
    await rig.at_taker.until(lambda: len(unbound.placed) == 30)
    assert rig.matches(list(range(60)))


async def test_what_waits_is_given_up_when_its_shipment_is(rig: Rig) -> None:
    """Two shipments that never bind fill the window; unregistering them frees it."""
    stuck = [rig.sink(is_bound=False), rig.sink(is_bound=False)]
    for shipment_id, sink in enumerate(stuck, 1):
        rig.receiver.register(shipment_id, 1, sink)
        await rig.source.send("D", shipment_id, 1, blocks(range(20)))
    await rig.at_taker.until(lambda: sum(len(sink.asked) for sink in stuck) == WINDOW_BLOCKS)
    sink = rig.sink()
    rig.receiver.register(3, 1, sink)
    await rig.source.send("D", 3, 1, blocks(range(10)))
    for shipment_id in (1, 2):
        rig.receiver.unregister(shipment_id, 1)
    await rig.at_taker.until(lambda: len(sink.placed) == 10)
    assert [sink.placed for sink in stuck] == [[], []]


async def test_nothing_is_placed_after_unregister(rig: Rig) -> None:
    sink, later = rig.sink(), rig.sink()
    rig.receiver.register(1, 1, sink)
    await rig.source.send("D", 1, 1, blocks(range(60)))
    await rig.at_taker.until(lambda: len(sink.placed) > 0)
    rig.receiver.unregister(1, 1)
    rig.receiver.unregister(1, 1)
    seen = len(sink.asked)
    rig.receiver.register(2, 1, later)
    await rig.source.send("D", 2, 1, blocks([1]))
    await rig.at_taker.until(lambda: later.placed == [1])
    assert len(sink.asked) == seen


async def test_nothing_is_sent_after_a_fence(rig: Rig) -> None:
    sink, other = rig.sink(is_bound=False), rig.sink()
    rig.receiver.register(1, 1, sink)
    rig.receiver.register(2, 1, other)
    await rig.source.send("D", 1, 1, blocks(range(40)))
    await rig.at_taker.until(lambda: len(sink.asked) > 0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.source.fence("D", 1, 1))
        rig.receiver.unregister(1, 1)  # what waits is given up: a source that is read from has to wait for that
    sent = [indices for _, key, indices in rig.at_source.sent if key == (1, 1)]
    with pytest.raises(TransferFailed, match="fenced"):
        await rig.source.send("D", 1, 1, blocks([41]))
    await rig.source.send("D", 2, 1, blocks([63]))
    await rig.at_taker.until(lambda: other.placed == [63])
    assert [indices for _, key, indices in rig.at_source.sent if key == (1, 1)] == sent
    assert sum(len(indices) for indices in sent) < 40


async def test_a_fence_of_something_unknown_returns_at_once(rig: Rig) -> None:
    await rig.source.fence("D", 77, 1)
    await rig.source.fence("nobody", 1, 1)


async def test_a_loss_is_told_once_on_both_sides_and_ends_every_registration(rig: Rig) -> None:
    sink = rig.sink(is_bound=False)
    rig.receiver.register(1, 1, sink)
    rig.receiver.register(2, 1, rig.sink())
    await rig.source.send("D", 1, 1, blocks(range(20)))
    await rig.at_taker.until(lambda: len(sink.asked) > 0)
    rig.disconnect()
    await rig.at_taker.until(lambda: len(rig.at_taker.lost) == 1)
    seen = len(sink.asked)
    await rig.at_source.until(lambda: len(rig.at_source.lost) == 1)
    assert rig.at_taker.lost == [("P", (ShipmentKey(1, 1), ShipmentKey(2, 1)))]
    assert rig.at_source.lost == [("D", (ShipmentKey(1, 1),))]
    await rig.receiver.connected(10)
    sink.is_bound = True
    rig.receiver.retry(1, 1)
    again = rig.sink()
    rig.receiver.register(1, 2, again)
    await rig.source.send("D", 1, 2, blocks(range(20)))
    await rig.at_taker.until(lambda: len(again.placed) == 20)
    assert len(sink.asked) == seen, "nothing of the old stream comes on the new one"
    assert len(rig.at_taker.lost) == len(rig.at_source.lost) == 1


async def test_a_key_is_registered_once(rig: Rig) -> None:
    rig.receiver.register(1, 1, rig.sink())
    with pytest.raises(ValueError, match="registered"):
        rig.receiver.register(1, 1, rig.sink())


async def test_a_pod_without_a_stream_is_sent_nothing(rig: Rig) -> None:
    assert await rig.source.is_connected("D")
    assert not await rig.source.is_connected("E")
    with pytest.raises(TransferFailed, match="no stream"):
        await rig.source.send("E", 1, 1, blocks([1]))


@pytest.mark.parametrize("name", each_of(CARRIERS))
async def test_a_block_larger_than_the_window_share_travels_alone(name: str) -> None:
    tight = type(SMALL)(window_bytes=BLOCK_BYTES, message_bytes=BLOCK_BYTES // 2)
    async with make_rig(name, tight) as rig:
        sink = rig.sink()
        rig.receiver.register(1, 1, sink)
        await rig.source.send("D", 1, 1, blocks(range(12)))
        await rig.at_taker.until(lambda: len(sink.placed) == 12)
        assert rig.receiver.counters.messages == 12
