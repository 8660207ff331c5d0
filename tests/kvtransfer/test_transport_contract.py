"""The contract of `kvtransfer/transport.py`, run against every transport that a plain machine has.

Proves placement, isolation of shipments, bounded flight, fencing and loss over the real code of both ends (loopback
gRPC). Cannot prove speed, or behaviour under a real network's losses.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from transport_rigs import BLOCK_BYTES, RIGS, SMALL, Rig

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.transport import ShipmentKey

WINDOW_BLOCKS = SMALL.window_bytes // BLOCK_BYTES


@pytest.fixture(params=sorted(RIGS))
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with RIGS[request.param]() as rig:
        yield rig


def blocks(indices: range | list[int]) -> list[tuple[int, int]]:
    return [(index, index) for index in indices]


async def test_blocks_arrive_whole_and_are_counted_once(rig: Rig) -> None:
    sink = rig.sink()
    rig.receiver.register(1, 1, sink)
    rig.sender.send("D", 1, 1, blocks(range(40)))
    await rig.at_receiver.until(lambda: len(sink.placed) == 40)
    assert sorted(sink.placed) == list(range(40))
    assert rig.matches(list(range(40)))
    await rig.at_sender.until(lambda: sum(len(indices) for _, _, indices in rig.at_sender.sent) == 40)
    for counters in (rig.sender.counters, rig.receiver.counters):
        assert (counters.blocks, counters.bytes) == (40, 40 * BLOCK_BYTES)
    assert rig.receiver.counters.messages == rig.sender.counters.messages == 20
    assert rig.receiver.counters.dropped == rig.receiver.counters.corrupt == 0


async def test_indices_with_gaps_and_other_block_ids(rig: Rig) -> None:
    sink = rig.sink()
    rig.receiver.register(1, 1, sink)
    rig.sender.send("D", 1, 1, [(3, 13), (7, 11), (8, 5)])
    await rig.at_receiver.until(lambda: len(sink.placed) == 3)
    assert sink.placed == [3, 7, 8]
    assert [rig.target.read(index) == rig.source.read(block_id) for index, block_id in [(3, 13), (7, 11), (8, 5)]] == [
        True
    ] * 3


async def test_unknown_and_stale_blocks_are_dropped_and_cost_no_credit(rig: Rig) -> None:
    """Far more than a window of strays, then a shipment: it arrives only if the strays' credit came back."""
    sink = rig.sink()
    rig.receiver.register(1, 2, sink)
    rig.sender.send("D", 1, 1, blocks(range(3 * WINDOW_BLOCKS)))
    rig.sender.send("D", 9, 2, blocks(range(3 * WINDOW_BLOCKS)))
    rig.sender.send("D", 1, 2, blocks([50]))
    await rig.at_receiver.until(lambda: sink.placed == [50])
    await rig.at_sender.until(lambda: rig.sender.counters.blocks == 6 * WINDOW_BLOCKS + 1)
    assert sink.deliveries == [(50, True)]


async def test_a_block_waits_for_its_id_without_stopping_other_shipments(rig: Rig) -> None:
    unbound, other = rig.sink(is_bound=False), rig.sink()
    rig.receiver.register(1, 1, unbound)
    rig.receiver.register(2, 1, other)
    rig.sender.send("D", 1, 1, blocks(range(30)))
    rig.sender.send("D", 2, 1, blocks(range(30, 60)))
    await rig.at_receiver.until(lambda: len(other.placed) == 30)
    assert len(unbound.deliveries) <= WINDOW_BLOCKS // 2, "what waits is bounded by the shipment's half of the window"
    assert unbound.placed == []
    unbound.is_bound = True
    rig.receiver.retry(1, 1)
    await rig.at_receiver.until(lambda: len(unbound.placed) == 30)
    assert rig.matches(list(range(60)))


async def test_what_waits_is_given_up_when_its_shipment_is(rig: Rig) -> None:
    """Two shipments that never bind fill the window; unregistering them frees it."""
    stuck = [rig.sink(is_bound=False), rig.sink(is_bound=False)]
    for shipment_id, sink in enumerate(stuck, 1):
        rig.receiver.register(shipment_id, 1, sink)
        rig.sender.send("D", shipment_id, 1, blocks(range(20)))
    await rig.at_receiver.until(lambda: sum(len(sink.deliveries) for sink in stuck) == WINDOW_BLOCKS)
    sink = rig.sink()
    rig.receiver.register(3, 1, sink)
    rig.sender.send("D", 3, 1, blocks(range(10)))
    for shipment_id in (1, 2):
        rig.receiver.unregister(shipment_id, 1)
    await rig.at_receiver.until(lambda: len(sink.placed) == 10)
    assert [sink.placed for sink in stuck] == [[], []]


async def test_nothing_is_placed_after_unregister(rig: Rig) -> None:
    sink, later = rig.sink(), rig.sink()
    rig.receiver.register(1, 1, sink)
    rig.sender.send("D", 1, 1, blocks(range(60)))
    await rig.at_receiver.until(lambda: len(sink.placed) > 0)
    rig.receiver.unregister(1, 1)
    rig.receiver.unregister(1, 1)
    seen = len(sink.deliveries)
    rig.receiver.register(2, 1, later)
    rig.sender.send("D", 2, 1, blocks([1]))
    await rig.at_receiver.until(lambda: later.placed == [1])
    assert len(sink.deliveries) == seen


async def test_nothing_is_sent_after_a_fence(rig: Rig) -> None:
    sink, other = rig.sink(is_bound=False), rig.sink()
    rig.receiver.register(1, 1, sink)
    rig.receiver.register(2, 1, other)
    rig.sender.send("D", 1, 1, blocks(range(40)))
    await rig.at_receiver.until(lambda: len(sink.deliveries) > 0)
    await rig.sender.fence("D", 1, 1)
    sent = [indices for _, key, indices in rig.at_sender.sent if key == (1, 1)]
    with pytest.raises(TransferFailed, match="fenced"):
        rig.sender.send("D", 1, 1, blocks([41]))
    sink.is_bound = True
    rig.receiver.retry(1, 1)
    rig.sender.send("D", 2, 1, blocks([63]))
    await rig.at_receiver.until(lambda: other.placed == [63])
    assert [indices for _, key, indices in rig.at_sender.sent if key == (1, 1)] == sent
    assert sum(len(indices) for indices in sent) < 40


async def test_a_fence_of_something_unknown_returns_at_once(rig: Rig) -> None:
    await rig.sender.fence("D", 77, 1)
    await rig.sender.fence("nobody", 1, 1)


async def test_a_loss_is_told_once_on_both_sides_and_ends_every_registration(rig: Rig) -> None:
    sink = rig.sink(is_bound=False)
    rig.receiver.register(1, 1, sink)
    rig.receiver.register(2, 1, rig.sink())
    rig.sender.send("D", 1, 1, blocks(range(20)))
    await rig.at_receiver.until(lambda: len(sink.deliveries) > 0)
    rig.disconnect()
    await rig.at_receiver.until(lambda: len(rig.at_receiver.lost) == 1)
    seen = len(sink.deliveries)
    await rig.at_sender.until(lambda: len(rig.at_sender.lost) == 1)
    assert rig.at_receiver.lost == [("P", (ShipmentKey(1, 1), ShipmentKey(2, 1)))]
    assert rig.at_sender.lost == [("D", (ShipmentKey(1, 1),))]
    await rig.receiver.connected(10)
    sink.is_bound = True
    rig.receiver.retry(1, 1)
    again = rig.sink()
    rig.receiver.register(1, 2, again)
    rig.sender.send("D", 1, 2, blocks(range(20)))
    await rig.at_receiver.until(lambda: len(again.placed) == 20)
    assert len(sink.deliveries) == seen, "nothing of the old stream comes on the new one"
    assert len(rig.at_receiver.lost) == len(rig.at_sender.lost) == 1


async def test_a_key_is_registered_once(rig: Rig) -> None:
    rig.receiver.register(1, 1, rig.sink())
    with pytest.raises(ValueError, match="registered"):
        rig.receiver.register(1, 1, rig.sink())


async def test_a_pod_without_a_stream_is_sent_nothing(rig: Rig) -> None:
    assert rig.sender.is_connected("D")
    assert not rig.sender.is_connected("E")
    with pytest.raises(TransferFailed, match="no stream"):
        rig.sender.send("E", 1, 1, blocks([1]))


async def test_a_block_larger_than_the_window_share_travels_alone() -> None:
    tight = type(SMALL)(window_bytes=BLOCK_BYTES, message_bytes=BLOCK_BYTES // 2)
    for make in RIGS.values():
        async with contextlib.AsyncExitStack() as stack:
            rig = await stack.enter_async_context(make(None, tight))
            sink = rig.sink()
            rig.receiver.register(1, 1, sink)
            rig.sender.send("D", 1, 1, blocks(range(12)))
            await rig.at_receiver.until(lambda sink=sink: len(sink.placed) == 12)  # type: ignore[misc]
            assert rig.receiver.counters.messages == 12
