"""When `cuda_ipc` posts copies, what it waits for, and what it leaves alone, on a device that is none.

Proves that copies are posted ahead, that each message is settled when its own copy has ended, and that whatever ends a
stream ends neither a copy nor the mapping under it. Cannot show what CUDA does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from pretended_device import PretendedDevice, PretendedPool, pretended_pool, unwritten_events
from transport_rigs import BLOCK_BYTES, FAST, NUM_BLOCKS, SECRET, Recorder, RecordingSink, dial_to, running, serving

from pagewire.core.cuda_export import EXPORT_BYTES, Export
from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed, TransferTimeout
from pagewire.core.token_door import TOKEN_BYTES
from pagewire.kvtransfer.carrier import Carrier
from pagewire.kvtransfer.transport import Flow, ShipmentKey
from pagewire.kvtransfer.transports import cuda_ipc
from pagewire.kvtransfer.transports.cuda_card import NUM_EVENTS
from pagewire.kvtransfer.transports.cuda_ipc import MAX_PLACES, MAX_SPANS, CudaIpcInlet, CudaIpcOutlet
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.kvtransfer.transports.stream_sender import StreamSender
from pagewire.kvtransfer.wire import Ready

KEY = ShipmentKey(1, 1)
FLOW = Flow(window_bytes=NUM_BLOCKS * BLOCK_BYTES, message_bytes=2 * BLOCK_BYTES)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> PretendedDevice:
    return PretendedDevice(monkeypatch)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Ends:
    """Both ends of the carrier, open."""

    def __init__(self, device: PretendedDevice, timeout_s: float, parts: tuple[int, int] = (1, 1)) -> None:
        self.source = pretended_pool(device, filled=True, num_parts=parts[0])
        self.target = pretended_pool(device, filled=False, num_parts=parts[1])
        self.outlet = CudaIpcOutlet(self.source)
        self.inlet = CudaIpcInlet(self.target, timeout_s)

    def placing(self, *block_ids: int, tag: int = NUM_EVENTS) -> asyncio.Task[Any]:
        """Each goes into the block of the same number."""
        ready = Ready(KEY, 0, (), block_ids=block_ids, tag=tag)
        return asyncio.ensure_future(self.inlet.place(ready, list(enumerate(block_ids))))  # type: ignore[arg-type]

    def is_there(self, block_id: int) -> bool:
        return self.target.read(block_id) == self.source.read(block_id)


@contextlib.asynccontextmanager
async def opened(
    device: PretendedDevice, timeout_s: float = 10.0, parts: tuple[int, int] = (1, 1)
) -> AsyncIterator[Ends]:
    ends = Ends(device, timeout_s, parts)
    try:
        await ends.inlet.open(await ends.outlet.open(b""))
        yield ends
    finally:
        device.run()
        ends.inlet.close()
        ends.outlet.close()


async def test_copies_are_posted_one_behind_the_other_and_each_ends_by_itself(device: PretendedDevice) -> None:
    async with opened(device) as ends:
        device.is_running = False
        first, second = ends.placing(1, 2, 3), ends.placing(7)
        await until(lambda: device.num_copies == 2)
        assert device.num_posted == 4, "runs of adjacent blocks are one copy, each message has its event"
        device.run(2)
        await first
        assert (ends.is_there(2), second.done(), ends.is_there(7)) == (True, False, False)
        device.run()
        await second
        assert ends.is_there(7)


async def test_a_copy_is_posted_once_its_blocks_are_written(device: PretendedDevice) -> None:
    async with opened(device) as ends:
        events = unwritten_events()
        ends.inlet._events = cast("list[Any]", events)
        early, written = ends.placing(1, tag=3), ends.placing(2)
        await written
        await asyncio.sleep(0.02)
        assert (device.num_copies, early.done()) == (1, False)
        events[3].has_happened = True
        await early
        assert ends.is_there(1)


async def test_what_is_never_written_costs_the_deadline_and_no_copy(device: PretendedDevice) -> None:
    async with opened(device, timeout_s=0.05) as ends:
        ends.inlet._events = cast("list[Any]", unwritten_events())
        with pytest.raises(TransferTimeout, match="did not write"):
            await ends.placing(1, tag=0)
        with pytest.raises(ContractBroken, match="event"):
            await ends.placing(1, tag=NUM_EVENTS + 1)
        assert device.num_copies == 0


async def test_blocks_that_lie_apart_are_copied_one_by_one_beside_the_loop(device: PretendedDevice) -> None:
    async with opened(device) as ends:
        scattered = range(0, NUM_BLOCKS, 3)
        assert len(scattered) > MAX_SPANS
        await ends.placing(*scattered)
        assert device.num_copies == len(scattered)
        assert all(ends.is_there(block_id) for block_id in scattered)


@pytest.mark.parametrize("parts", [(2, 1), (1, 2), (2, 2), (4, 2), (2, 8)])
async def test_pools_in_parts_are_copied_piece_by_piece(device: PretendedDevice, parts: tuple[int, int]) -> None:
    """As where one pod has several ranks, or both have: each with a device, and with its heads of every block there."""
    async with opened(device, parts=parts) as ends:
        before = bytes(ends.target.read(0))
        await ends.placing(1, 2, 3, 60)
        assert device.num_copies == 2 * max(parts), "a run of adjacent blocks is one copy for each piece"
        assert all(ends.is_there(block_id) for block_id in (1, 2, 3, 60))
        assert [ends.target.read(block_id) for block_id in (0, 4, 59, 61)] == [before] * 4
    await until(lambda: device.num_unmapped == parts[0])


@pytest.mark.parametrize("source_parts", [1, 2, 4])
async def test_each_of_our_devices_copies_for_itself(device: PretendedDevice, source_parts: int) -> None:
    """And maps what it takes from, no more; nobody's placement ends before the last of them."""
    other = device.another()
    async with opened(device, parts=(source_parts, 2)) as ends:
        assert len(ends.inlet._mapped) == max(source_parts, 2)
        other.is_running = False
        placing = ends.placing(1, 2, 3, 60)
        await until(lambda: other.num_posted == max(source_parts, 2) + 1)  # two runs of its half of the pieces
        await asyncio.sleep(0.02)
        assert (device.num_posted, placing.done()) == (0, False)
        placing.cancel()
        await asyncio.sleep(0.02)
        assert not placing.done(), "no copy is called back, on any device"
        other.run()
        with pytest.raises(asyncio.CancelledError):
            await placing
        assert all(ends.is_there(block_id) for block_id in (1, 2, 3, 60))
        other.is_running = True
        await ends.placing(9)
        assert ends.is_there(9)
    await until(lambda: device.num_unmapped + other.num_unmapped == max(source_parts, 2))


async def test_where_one_of_our_devices_fails_the_others_copies_are_waited_for(
    device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = device.another()
    async with opened(device, parts=(2, 2)) as ends:
        device.is_running = other.is_running = False
        placing = ends.placing(5)
        await until(lambda: (device.num_posted, other.num_posted) == (2, 2))
        looked_at: list[Any] = []

        def fails_once(event: Any) -> bool:
            if not looked_at or looked_at[0] is event:
                looked_at.append(event)
                raise StreamLost("the device has failed: the test says so")
            return bool(event.query())

        monkeypatch.setattr(cuda_ipc, "_has_happened", fails_once)
        await until(lambda: bool(looked_at))
        await asyncio.sleep(0.02)
        assert not placing.done()
        device.run()
        other.run()
        with pytest.raises(StreamLost, match="the test says so"):
            await placing


async def test_a_card_of_parts_that_no_block_has_is_a_named_error(device: PretendedDevice) -> None:
    ends = Ends(device, 1.0)
    card = await ends.outlet.open(b"")
    at = 4 + 8 + TOKEN_BYTES
    for number, why in ((3, "do not lie in 3 equal parts"), (0, "not the card"), (65, "not the card")):
        spoilt = card[:at] + number.to_bytes(4, "little") + card[at + 4 :] + bytes(number * EXPORT_BYTES)
        with pytest.raises(TransferFailed, match=why):
            await ends.inlet.open(spoilt)
    ends.inlet.close()
    ends.outlet.close()


async def test_of_parts_one_that_is_too_small_is_refused_and_all_are_unmapped(device: PretendedDevice) -> None:
    ends = Ends(device, 1.0, (2, 1))
    full, half = ends.source.export()
    small = Export(half.handle[:8] + (100).to_bytes(8, "little") + half.handle[16:], 0)
    ends.source.export = lambda: (full, small)  # type: ignore[method-assign]
    with pytest.raises(TransferFailed, match="of 100 bytes"):
        await ends.inlet.open(await ends.outlet.open(b""))
    ends.inlet.close()
    await until(lambda: device.num_unmapped == 2)
    ends.outlet.close()


@pytest.mark.parametrize("way", ["cancelled", "closed"])
async def test_a_placement_ends_with_its_copy_however_it_is_given_up(device: PretendedDevice, way: str) -> None:
    async with opened(device) as ends:
        device.is_running = False
        placing = ends.placing(5)
        await until(lambda: device.num_posted == 2)
        if way == "cancelled":
            placing.cancel()
        else:
            ends.inlet.close()
        await asyncio.sleep(0.02)
        assert (placing.done(), device.num_unmapped) == (False, 0)
        device.run()
        with contextlib.suppress(asyncio.CancelledError, StreamLost):
            await placing
        assert ends.is_there(5)
        ends.inlet.close()
        await until(lambda: device.num_unmapped == 1)
        with pytest.raises(StreamLost, match="not open"):
            await ends.placing(6)
        assert device.num_copies == 1


async def test_a_source_that_let_go_while_its_blocks_were_copied_is_noticed(device: PretendedDevice) -> None:
    async with opened(device) as ends:
        device.is_running = False
        placing = ends.placing(5)
        await until(lambda: device.num_posted == 2)
        ends.outlet.close()
        device.run()
        with pytest.raises(StreamLost, match="let go"):
            await placing


async def test_what_was_posted_before_a_copy_that_failed_is_waited_for(device: PretendedDevice) -> None:
    async with opened(device) as ends:
        device.is_running, device.copy_fails_at = False, 1
        placing = ends.placing(5, 9)
        await until(lambda: device.num_posted == 2)
        await asyncio.sleep(0.02)
        assert not placing.done()
        device.run()
        with pytest.raises(TransferFailed, match="the test says so"):
            await placing


async def test_a_card_of_nobody_who_listens_is_a_named_error(device: PretendedDevice) -> None:
    ends = Ends(device, 1.0)
    card = await ends.outlet.open(b"")
    ends.outlet.close()
    for spoilt, why in ((card, "cannot be reached"), (b"x" + card[1:], "not the card"), (b"", "a card of 0 bytes")):
        with pytest.raises(TransferFailed, match=why):
            await ends.inlet.open(spoilt)
    ends.inlet.close()


# ------------------------------------------------------------------------------------------------- over a stream


@dataclasses.dataclass
class Stream:
    """Pods `P` and `D` with a stream of this carrier between them."""

    sender: StreamSender
    receiver: StreamReceiver
    source: PretendedPool
    target: PretendedPool
    taker: Recorder


@contextlib.asynccontextmanager
async def streaming(device: PretendedDevice, *others: Carrier) -> AsyncIterator[Stream]:
    source, target, recorder = pretended_pool(device, filled=True), pretended_pool(device, filled=False), Recorder()
    carriers = (dataclasses.replace(cuda_ipc.carrier(), flow=FLOW), *others)
    sender = StreamSender(pod_id="P", secret=SECRET, memory=source, carriers=carriers, times=FAST)
    async with serving(sender) as address:
        receiver = StreamReceiver(
            dial_to(address), pod_id="D", source_id="P", secret=SECRET, memory=target, on_lost=recorder.on_lost,
            carriers=carriers, times=FAST,
        )  # fmt: skip
        async with running(receiver):
            await receiver.connected(10)
            try:
                yield Stream(sender, receiver, source, target, recorder)
            finally:
                device.run()
                device.is_running = True


def whole(num_blocks: int) -> list[tuple[int, int]]:
    return [(index, index) for index in range(num_blocks)]


async def test_a_pool_that_the_driver_does_not_map_is_shipped_by_the_next_carrier(device: PretendedDevice) -> None:
    """As between containers that find each other's sockets, and share no namespace or see no GPU in common."""
    device.maps = False
    async with streaming(device, GRPC) as stream:
        assert (stream.receiver.transport, stream.receiver.is_fallback) == ("grpc", True)
        sink = RecordingSink(stream.taker)
        stream.receiver.register(1, 1, sink)
        stream.sender.send("D", 1, 1, whole(NUM_BLOCKS))
        await stream.taker.until(lambda: len(sink.placed) == NUM_BLOCKS)
        assert all(stream.target.read(index) == stream.source.read(index) for index in range(NUM_BLOCKS))
    assert (device.num_copies, device.num_unmapped) == (0, 0)


async def test_messages_are_posted_ahead_and_credited_as_they_end(device: PretendedDevice) -> None:
    async with streaming(device) as stream:
        sink = RecordingSink(stream.taker)
        stream.receiver.register(1, 1, sink)
        device.is_running = False
        stream.sender.send("D", 1, 1, whole(24))
        await until(lambda: device.num_posted == 2 * MAX_PLACES)
        await asyncio.sleep(0.02)
        assert (device.num_copies, sink.placed) == (MAX_PLACES, [])
        device.run(2)
        await stream.taker.until(lambda: sink.placed == [0, 1])
        await until(lambda: device.num_copies == MAX_PLACES + 1)
        device.is_running = True
        device.run()
        await stream.taker.until(lambda: len(sink.placed) == 24)
        assert sink.placed == list(range(24))
        assert all(stream.target.read(index) == stream.source.read(index) for index in range(24))
        await asyncio.wait_for(stream.sender.fence("D", 1, 1), 5)  # all of it was given back


async def test_a_lost_stream_settles_its_claims_when_the_copies_have_ended(device: PretendedDevice) -> None:
    async with streaming(device) as stream:
        sink = RecordingSink(stream.taker)
        stream.receiver.register(1, 1, sink)
        device.is_running = False
        stream.sender.send("D", 1, 1, whole(24))
        await until(lambda: device.num_copies == MAX_PLACES)
        stream.receiver.drop("the test says so")
        await stream.taker.until(lambda: bool(stream.taker.lost))
        await asyncio.sleep(0.05)
        assert (len(sink.open), stream.receiver.is_connected, device.num_unmapped) == (2 * MAX_PLACES, False, 0)
        device.is_running = True
        device.run()
        await stream.taker.until(lambda: not sink.open)
        assert (sink.placed, sink.spoilt, device.num_copies) == ([], list(range(2 * MAX_PLACES)), MAX_PLACES)
        await stream.receiver.connected(10)
        again = RecordingSink(stream.taker)
        stream.receiver.register(2, 1, again)
        stream.sender.send("D", 2, 1, whole(8))
        await stream.taker.until(lambda: again.placed == list(range(8)))


async def test_a_copy_that_fails_ends_the_stream_and_the_copies_behind_it_first(device: PretendedDevice) -> None:
    async with streaming(device) as stream:
        sink = RecordingSink(stream.taker)
        stream.receiver.register(1, 1, sink)
        device.is_running, device.copy_fails_at = False, 1
        stream.sender.send("D", 1, 1, whole(8))
        await until(lambda: device.num_copies >= 2)
        await asyncio.sleep(0.02)
        assert sink.spoilt == []
        device.is_running = True
        device.run()
        await stream.taker.until(lambda: bool(stream.taker.lost) and not sink.open)
        assert set(sink.placed) <= {0, 1}
        assert {2, 3} <= set(sink.spoilt)
