"""One prefill pod and one decode pod joined by a transport, for the contract suite: one handle for all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc

from pagewire.kvtransfer.effects import Verdict
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import (
    BlockMemory,
    Flow,
    Receiver,
    Sender,
    ShipmentKey,
    TransportTimes,
)
from pagewire.kvtransfer.transports.grpc import CHANNEL_OPTIONS, GrpcReceiver, GrpcSender
from pagewire.kvtransfer.transports.local import LocalReceiver, LocalSender

BLOCK_BYTES = 1024
NUM_BLOCKS = 64
SECRET = b"cluster secret"
FAST = TransportTimes(connect_s=5.0, write_s=5.0, reconnect_min_s=0.01, reconnect_max_s=0.02)
SMALL = Flow(window_bytes=8 * BLOCK_BYTES, message_bytes=2 * BLOCK_BYTES)


def pool(num_blocks: int = NUM_BLOCKS, *, filled: bool) -> PoolMemory:
    """A pool whose every block differs from every other, or one of zeros."""
    data = bytearray(num_blocks * BLOCK_BYTES)
    if filled:
        for block_id in range(num_blocks):
            data[block_id * BLOCK_BYTES : (block_id + 1) * BLOCK_BYTES] = bytes(
                (block_id * 31 + at * 7) % 251 for at in range(BLOCK_BYTES)
            )
    return PoolMemory(memoryview(data), block_bytes=BLOCK_BYTES, num_blocks=num_blocks)


class Recorder:
    """What both ends reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, tuple[ShipmentKey, ...]]] = []
        self.sent: list[tuple[str, ShipmentKey, tuple[int, ...]]] = []
        self._changed = asyncio.Event()

    def on_lost(self, peer_id: str, keys: tuple[ShipmentKey, ...]) -> None:
        self.lost.append((peer_id, keys))
        self.note()

    def on_sent(self, peer_id: str, key: ShipmentKey, indices: tuple[int, ...]) -> None:
        self.sent.append((peer_id, key, indices))
        self.note()

    def note(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class RecordingSink:
    """A sink that writes block i into block i of a pool, once `is_bound`, and remembers every delivery."""

    def __init__(self, memory: BlockMemory, recorder: Recorder, *, is_bound: bool = True) -> None:
        self.memory = memory
        self.is_bound = is_bound
        self.deliveries: list[tuple[int, bool]] = []
        self.placed: list[int] = []
        self._recorder = recorder

    def deliver(
        self, shipment_id: int, generation: int, block_index: int, data: memoryview, is_intact: bool
    ) -> Verdict:
        self.deliveries.append((block_index, is_intact))
        self._recorder.note()
        if not is_intact:
            return Verdict.CORRUPT
        if not self.is_bound:
            return Verdict.WAIT
        self.memory.write(block_index, data)
        self.placed.append(block_index)
        return Verdict.PLACE


class Rig:
    """Both ends of a transport between pods `P` and `D`."""

    def __init__(
        self, sender: Sender, receiver: Receiver, source: BlockMemory, recorders: tuple[Recorder, Recorder]
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.source = source
        self.target = pool(filled=False)
        self.at_sender, self.at_receiver = recorders
        self.disconnect: Callable[[], None] = lambda: None

    def sink(self, *, is_bound: bool = True) -> RecordingSink:
        return RecordingSink(self.target, self.at_receiver, is_bound=is_bound)

    def matches(self, indices: list[int]) -> bool:
        return all(self.source.read(index) == self.target.read(index) for index in indices)


@contextlib.asynccontextmanager
async def local_rig(source: BlockMemory | None = None, flow: Flow = SMALL) -> AsyncIterator[Rig]:
    """Within the process, no network."""
    memory = source or pool(filled=True)
    p, d = Recorder(), Recorder()
    sender = LocalSender(pod_id="P", memory=memory, on_lost=p.on_lost, on_sent=p.on_sent)
    receiver = LocalReceiver(sender, pod_id="D", on_lost=d.on_lost, flow=flow)
    receiver.connect()
    rig = Rig(sender, receiver, memory, (p, d))

    def reconnect() -> None:
        receiver.disconnect()
        asyncio.get_running_loop().call_soon(receiver.connect)

    rig.disconnect = reconnect
    yield rig


@contextlib.asynccontextmanager
async def serving(sender: GrpcSender) -> AsyncIterator[str]:
    """A gRPC server on a free loopback port."""
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((sender.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        sender.close("the test ends")
        await server.stop(0)


@contextlib.asynccontextmanager
async def running(receiver: GrpcReceiver) -> AsyncIterator[None]:
    """A receiver that keeps its stream."""
    task = asyncio.create_task(receiver.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def grpc_rig(source: BlockMemory | None = None, flow: Flow = SMALL) -> AsyncIterator[Rig]:
    """Over loopback."""
    memory = source or pool(filled=True)
    p, d = Recorder(), Recorder()
    sender = GrpcSender(
        pod_id="P", secret=SECRET, memory=memory, on_lost=p.on_lost, on_sent=p.on_sent,
        message_bytes=flow.message_bytes, times=FAST,
    )  # fmt: skip
    async with serving(sender) as address, grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        receiver = GrpcReceiver(
            channel, pod_id="D", sender_id="P", secret=SECRET, block_bytes=memory.block_bytes, on_lost=d.on_lost,
            flow=flow, times=FAST,
        )  # fmt: skip
        async with running(receiver):
            await receiver.connected(10)
            rig = Rig(sender, receiver, memory, (p, d))
            rig.disconnect = lambda: receiver.drop("the test says so")
            yield rig


RIGS = {"local": local_rig, "grpc": grpc_rig}
