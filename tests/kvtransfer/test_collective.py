"""What is particular to communicators: both ends here, over gloo on loopback; NCCL where there are two CUDA devices.

Proves when a communicator is built anew, what a message that is missing, doubled or too much comes to, and that a lost
peer ends what waits for it. Cannot prove anything of a network.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import torch
from device_pools import device_pool
from transport_rigs import BLOCK_BYTES, NUM_BLOCKS, pool

from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory, ShipmentKey
from pagewire.kvtransfer.transports.collective import CollectiveInlet, CollectiveOptions, CollectiveOutlet
from pagewire.kvtransfer.transports.communicator import Rendezvous
from pagewire.kvtransfer.transports.device_pool import DevicePool
from pagewire.kvtransfer.wire import Ready

KEY = ShipmentKey(1, 1)
QUICK = CollectiveOptions(host="127.0.0.1", timeout_s=5.0)


class Ends:
    """An outlet and an inlet that are open, and what a stream does between them."""

    def __init__(self, source: BlockMemory, target: BlockMemory, options: CollectiveOptions) -> None:
        self.source, self.target = source, target
        self.outlet = CollectiveOutlet(source, options)
        self.inlet = CollectiveInlet(target, options)

    def announced(self, *block_ids: int) -> tuple[Batch, Ready]:
        batch = Batch(KEY, 0, block_ids)
        return batch, Ready(KEY, 0, (), block_ids=block_ids, tag=self.outlet.tag(batch))

    async def ship(self, *block_ids: int) -> Ready:
        """Carry a message's blocks, and place each under its own id."""
        batch, ready = self.announced(*block_ids)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.outlet.carry(batch))
            tasks.create_task(self.inlet.arrived(ready))
        await self.inlet.place(ready, [(position, block_id) for position, block_id in enumerate(block_ids)])
        return ready

    def matches(self, *block_ids: int) -> bool:
        return all(self.source.read(block_id) == self.target.read(block_id) for block_id in block_ids)


@contextlib.asynccontextmanager
async def joined(source: BlockMemory, target: BlockMemory, options: CollectiveOptions = QUICK) -> AsyncIterator[Ends]:
    ends = Ends(source, target, options)
    try:
        await ends.inlet.open(await ends.outlet.open(ends.inlet.card))
        yield ends
    finally:
        ends.outlet.close()
        ends.inlet.close()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    async with joined(pool(filled=True), pool(filled=False)) as ends:
        yield ends


async def test_messages_of_any_size_arrive_and_their_staging_is_used_again(ends: Ends) -> None:
    for block_ids in ((3,), (5, 4, 60), tuple(range(20)), (1, 2)):
        ends.inlet.done(await ends.ship(*block_ids))
        assert ends.matches(*block_ids)


async def test_what_is_held_back_is_not_overwritten_by_what_comes_after_it(ends: Ends) -> None:
    batch, held = ends.announced(7, 8)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ends.outlet.carry(batch))
        tasks.create_task(ends.inlet.arrived(held))
    ends.inlet.done(await ends.ship(20, 21))
    await ends.inlet.place(held, [(0, 7), (1, 8)])
    assert ends.matches(7, 8, 20, 21)


async def test_an_idle_communicator_closes_and_the_next_message_builds_another(ends: Ends) -> None:
    await ends.ship(1)
    first = ends.outlet._pair.communicator()
    await ends.ship(2)
    assert ends.outlet._pair.communicator() is first, "one serves all messages"
    ends.outlet._pair.hang_up()  # as its timer does
    await ends.ship(3)
    assert ends.outlet._pair.communicator() is not first
    assert ends.matches(1, 2, 3)


async def test_the_timer_closes_what_nobody_uses() -> None:
    options = CollectiveOptions(host="127.0.0.1", timeout_s=5.0, idle_s=0.01)
    async with joined(pool(filled=True), pool(filled=False), options) as ends:
        pair, closed = ends.outlet._pair, asyncio.Event()
        hang_up = pair.hang_up

        def told() -> None:
            hang_up()
            closed.set()

        pair.hang_up = told  # type: ignore[method-assign]
        for block_id in range(3):
            closed.clear()
            await ends.ship(block_id)
            async with asyncio.timeout(5):
                await closed.wait()
            assert not pair.is_up
        assert ends.matches(0, 1, 2)


async def test_a_message_that_came_twice_is_received_once(ends: Ends) -> None:
    ready = await ends.ship(4)
    again = Ready(KEY, 0, (), block_ids=(4,), tag=ready.tag)
    await ends.inlet.arrived(again)
    with pytest.raises(TransferFailed, match="nothing came"):
        await ends.inlet.place(again, [(0, 4)])
    ends.inlet.done(again)
    await ends.ship(5)
    assert ends.matches(4, 5)


async def test_a_missing_message_ends_the_stream(ends: Ends) -> None:
    await ends.ship(1)
    ends.announced(2)
    _, ready = ends.announced(3)
    with pytest.raises(ContractBroken, match="missing"):
        await ends.inlet.arrived(ready)


async def test_a_message_without_a_communicator_ends_the_stream(ends: Ends) -> None:
    with pytest.raises(ContractBroken, match="no communicator"):
        await ends.inlet.arrived(Ready(KEY, 0, (), block_ids=(1,), tag=0))


async def test_what_a_source_can_make_us_stage_is_bounded() -> None:
    options = CollectiveOptions(host="127.0.0.1", timeout_s=5.0, staged_bytes=4 * BLOCK_BYTES)
    async with joined(pool(filled=True), pool(filled=False), options) as ends:
        await ends.ship(0, 1)
        await ends.ship(2, 3)
        _, ready = ends.announced(4)
        with pytest.raises(ContractBroken, match="staged"):
            await ends.inlet.arrived(ready)


async def test_a_peer_that_closes_ends_what_waits_for_it(ends: Ends) -> None:
    await ends.ship(1)
    _, ready = ends.announced(2)
    waiting = asyncio.create_task(ends.inlet.arrived(ready))
    await asyncio.sleep(0)
    ends.outlet.close()
    with pytest.raises(TransferFailed):
        await waiting


async def test_closing_ends_our_own_wait_at_once(ends: Ends) -> None:
    await ends.ship(1)
    _, ready = ends.announced(2)
    waiting = asyncio.create_task(ends.inlet.arrived(ready))
    await asyncio.sleep(0)
    ends.inlet.close()
    with pytest.raises(StreamLost, match="closed"):
        await waiting


async def test_a_peer_that_never_comes_costs_the_deadline_and_no_more() -> None:
    async with joined(
        pool(filled=True), pool(filled=False), CollectiveOptions(host="127.0.0.1", timeout_s=0.2)
    ) as ends:
        batch, _ = ends.announced(1)
        with pytest.raises(TransferFailed):
            await ends.outlet.carry(batch)


async def test_pools_of_two_kinds_are_refused(ends: Ends) -> None:
    with pytest.raises(TransferFailed, match="our pool is on cpu"):
        await CollectiveOutlet(ends.source, QUICK).open(b"cuda")


@pytest.mark.parametrize("spoil", ["empty", "magic", "length", "idle", "host"])
async def test_a_card_is_checked(spoil: str) -> None:
    card = Rendezvous(host="127.0.0.1", port=1, name=bytes(16), idle_s=1.0).card()
    nan = Rendezvous(host="127.0.0.1", port=1, name=bytes(16), idle_s=float("nan")).card()
    spoilt = {"empty": b"", "magic": b"x" + card[1:], "length": card + b"x", "idle": nan, "host": card[:-1] + b"\xff"}
    with pytest.raises(TransferFailed, match="card"):
        await CollectiveInlet(pool(filled=False), QUICK).open(spoilt[spoil])


async def test_a_store_that_is_not_there_is_a_named_error() -> None:
    card = Rendezvous(host="127.0.0.1", port=1, name=bytes(16), idle_s=1.0).card()
    with pytest.raises(StreamLost, match=r"no store at 127\.0\.0\.1:1"):
        await CollectiveInlet(pool(filled=False), QUICK).open(card)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a CUDA device for each of the two ranks")
async def test_nccl_carries_blocks_between_two_devices() -> None:
    async with joined(device_pool(filled=True), device_pool(device=1, filled=False)) as ends:
        for block_ids in ((3,), (5, 4, 60), tuple(range(20))):
            ends.inlet.done(await ends.ship(*block_ids))
            assert ends.matches(*block_ids)
        ends.outlet._pair.hang_up()
        await ends.ship(30)
        assert ends.matches(30)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
async def test_a_pool_on_a_device_is_read_and_written_by_a_host() -> None:
    source, target = device_pool(filled=True), device_pool(filled=False)
    source.wrote(torch.cuda.current_stream())
    target.write(3, source.read(5))
    assert target.read(3) == pool(filled=True).read(5)
    with pytest.raises(IndexError):
        source.read(NUM_BLOCKS)


def test_only_host_pools_are_read_without_a_device() -> None:
    assert isinstance(pool(filled=False), PoolMemory)
    with pytest.raises(ValueError, match="not a pool of bytes on a CUDA device"):
        DevicePool(torch.zeros(2, 8, dtype=torch.uint8))
