"""What pods offer and what two of them use; and blocks that lie in another order at the source."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from transport_rigs import CARRIERS, FAST, ON_HOSTS, SECRET, SMALL, Recorder, RecordingSink, dial_to, running, serving

from pagewire.core.errors import PeerMismatch, TransferFailed
from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.core.side_door import SideDoor
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.offers import AUTO, AUTO_ON_A_DEVICE, Offer, Offers, parse_names
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.local import TOKEN_BYTES, LocalPools
from pagewire.kvtransfer.transports.offered import offered
from pagewire.kvtransfer.transports.shm import shm_carrier
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.kvtransfer.transports.stream_sender import StreamSender

LAYOUT = KVLayout(num_layers=2, num_kv_heads=3, head_dim=4, block_size=16, dtype="float32")
OTHER = dataclasses.replace(LAYOUT, order=BlockOrder.HEAD_OUTER)
NUM_BLOCKS = 12


def test_a_setting_names_transports() -> None:
    assert tuple(parse_names("auto")) == AUTO == ("shm", "tcp", "grpc")
    assert parse_names("grpc, shm") == ("grpc", "shm")
    for wrong in ("", "grpc,", "rdma", "grpc,grpc", "auto,grpc"):
        with pytest.raises(ValueError, match="transports"):
            parse_names(wrong)


def test_what_two_pods_use_is_in_the_order_of_the_answer_and_of_one_host() -> None:
    shm = shm_carrier()
    here, there = Offers((Offer(shm, "a"), Offer(GRPC))), Offers((Offer(shm, "b"), Offer(GRPC)))
    assert here.texts == ("shm@a", "grpc")
    assert here.carriers == (shm, GRPC)
    assert here.common(("grpc", "shm@a", "nixl")) == (GRPC, shm)
    assert here.common(there.texts) == (GRPC,)
    assert here.common(()) == ()


def test_pods_of_one_host_offer_shm_first_and_of_two_directories_not(tmp_path: object) -> None:
    door = SideDoor()
    texts = offered(door=door).texts
    assert [text.partition("@")[0] for text in texts] == list(AUTO)
    assert len(offered(door=door).common(texts)) == 3
    assert [carrier.name for carrier in offered("auto", str(tmp_path), door=door).common(texts)] == ["tcp", "grpc"]
    assert offered("grpc").texts == ("grpc",)
    assert "tcp" not in offered().texts, "where all is encrypted"
    assert offered("tcp,grpc").texts == ("grpc",)


def test_local_is_for_pods_that_share_their_pools() -> None:
    pools, others = LocalPools(), LocalPools()
    here, there = Offers((pools.offer(), Offer(GRPC))), Offers((Offer(GRPC), pools.offer()))
    assert [carrier.name for carrier in here.common(there.texts)] == ["grpc", "local"]
    assert here.common(Offers((others.offer(), Offer(GRPC))).texts) == (GRPC,)


async def test_local_copies_from_no_pool_but_the_one_on_the_card() -> None:
    carrier = LocalPools().offer().carrier
    source, taker = carrier.outlet(a_pool(filled=True), "D"), carrier.inlet(a_pool(filled=False), "P")
    with pytest.raises(TransferFailed, match="no pool"):
        await taker.open(bytes(TOKEN_BYTES))
    card = await source.open(taker.card)
    with pytest.raises(TransferFailed, match="no pool"):
        await LocalPools().offer().carrier.inlet(a_pool(filled=False), "P").open(card)
    await taker.open(card)
    source.close()
    with pytest.raises(TransferFailed, match="no pool"):
        await taker.open(card)


@pytest.mark.parametrize("anywhere", ["0.0.0.0", "::"])
def test_a_communicator_needs_an_address_that_its_peer_can_dial(anywhere: str) -> None:
    with pytest.raises(ValueError, match=f"host must be an address that peers dial, is {anywhere}"):
        offered("collective,grpc", host=anywhere)


def test_some_transports_are_for_pools_on_a_gpu_and_some_for_those_in_host_memory() -> None:
    with pytest.raises(ValueError, match="cuda_ipc is for pools on a GPU"):
        offered("cuda_ipc")
    with pytest.raises(ValueError, match="shm is for pools in host memory, this pod's is on cuda:1"):
        offered("grpc,shm", device="cuda:1")
    assert parse_names("cuda_ipc,grpc", "cuda") == ("cuda_ipc", "grpc")
    assert tuple(parse_names("auto", "cuda")) == AUTO_ON_A_DEVICE == ("cuda_ipc", "grpc")
    assert [text.partition("@")[0] for text in offered(device="cuda").texts] == list(AUTO_ON_A_DEVICE)


def a_pool(*, filled: bool) -> PoolMemory:
    """A pool that others can map, of numbers that all differ, or of zeros."""
    fd = os.memfd_create("pagewire-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, NUM_BLOCKS * LAYOUT.block_bytes)
        memory = PoolMemory.map(fd, block_bytes=LAYOUT.block_bytes, num_blocks=NUM_BLOCKS)
    finally:
        os.close(fd)
    if filled:
        numbers_of(memory, LAYOUT).view(-1).copy_(torch.arange(memory.num_bytes // 4))
    memory.seal()
    return memory


def numbers_of(memory: PoolMemory, layout: KVLayout) -> torch.Tensor:
    """The pool as numbers, in its layout's shape."""
    return torch.frombuffer(memory.view, dtype=torch.float32).view(layout.shape(NUM_BLOCKS))


def by_layer(pool: torch.Tensor, layout: KVLayout) -> torch.Tensor:
    """A pool's numbers, [N, L, 2, Hk, B, D] whatever their order in memory."""
    return pool.permute(0, 2, 3, 1, 4, 5) if layout.order is BlockOrder.HEAD_OUTER else pool


@pytest.mark.parametrize("name", ON_HOSTS)  # a device's pool is staged for another order nowhere yet
@pytest.mark.parametrize(("theirs", "ours"), [(LAYOUT, OTHER), (OTHER, LAYOUT), (OTHER, OTHER)])
async def test_blocks_of_another_order_arrive_in_ours(name: str, theirs: KVLayout, ours: KVLayout) -> None:
    recorder, source, target = Recorder(), a_pool(filled=True), a_pool(filled=False)
    carriers = (CARRIERS[name](),)
    sender = StreamSender(
        pod_id="P", secret=SECRET, memory=source, carriers=carriers, on_lost=recorder.on_lost, layout=theirs,
        times=FAST,
    )  # fmt: skip
    async with serving(sender) as address:
        receiver = StreamReceiver(
            dial_to(address), pod_id="D", source_id="P", secret=SECRET, memory=target, on_lost=recorder.on_lost,
            carriers=carriers, layout=ours, flow=SMALL, times=FAST,
        )  # fmt: skip
        async with running(receiver):
            await receiver.connected(30)
            assert receiver.transport == name
            sink = RecordingSink(recorder)
            receiver.register(1, 1, sink)
            sender.send("D", 1, 1, [(index, NUM_BLOCKS - 1 - index) for index in range(NUM_BLOCKS)])
            await recorder.until(lambda: len(sink.placed) == NUM_BLOCKS)
    sent, landed = by_layer(numbers_of(source, theirs), theirs), by_layer(numbers_of(target, ours), ours)
    assert torch.equal(landed, sent.flip(0))


async def test_a_taker_that_does_not_say_its_order_takes_no_other() -> None:
    recorder = Recorder()
    sender = StreamSender(
        pod_id="P", secret=SECRET, memory=a_pool(filled=True), carriers=(GRPC,), on_lost=recorder.on_lost,
        layout=LAYOUT, times=FAST,
    )  # fmt: skip
    async with serving(sender) as address:
        receiver = StreamReceiver(
            dial_to(address), pod_id="D", source_id="P", secret=SECRET, memory=a_pool(filled=False), carriers=(GRPC,),
            on_lost=recorder.on_lost, times=FAST,
        )  # fmt: skip
        async with running(receiver):
            with pytest.raises(PeerMismatch, match="no stream"):
                await receiver.connected(0.5)
            assert "order of a block's axes" in receiver.reason
            assert receiver.transport == ""
    assert sender.counters.messages == 0
    assert all(key != ShipmentKey(1, 1) for _, keys in recorder.lost for key in keys)
