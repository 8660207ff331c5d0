"""What the tests of transports are made of: pools, recorders, sinks, streams on loopback, every carrier there is."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import importlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from pagewire.core.errors import PagewireError
from pagewire.core.side_door import SideDoor
from pagewire.kvtransfer.carrier import Carrier
from pagewire.kvtransfer.effects import Claim, Verdict
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory, Flow, ShipmentKey, TransportTimes
from pagewire.kvtransfer.transports import nixl, tcp
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.local import LocalPools
from pagewire.kvtransfer.transports.shm import shm_carrier
from pagewire.kvtransfer.transports.stream import CHANNEL_OPTIONS
from pagewire.kvtransfer.transports.stream_receiver import Dial, StreamReceiver
from pagewire.kvtransfer.transports.stream_sender import StreamSender

if TYPE_CHECKING:  # torch, only where it is used
    from pagewire.kvtransfer.transports.device_pool import DevicePool

BLOCK_BYTES = 1024
NUM_BLOCKS = 64
SECRET = b"cluster secret"
FAST = TransportTimes(
    connect_s=10.0, write_s=5.0, place_s=5.0, credit_s=1.0, reconnect_min_s=0.01, reconnect_max_s=0.02
)
SMALL = Flow(window_bytes=8 * BLOCK_BYTES, message_bytes=2 * BLOCK_BYTES, sums_follow_bytes=2 * BLOCK_BYTES)


def _collective() -> Carrier:
    collective = importlib.import_module("pagewire.kvtransfer.transports.collective")  # torch, only where it is used
    carrier: Carrier = collective.carrier(collective.CollectiveOptions(host="127.0.0.1", timeout_s=4.0))
    return carrier


def _cuda_ipc() -> Carrier:
    carrier: Carrier = importlib.import_module("pagewire.kvtransfer.transports.cuda_ipc").carrier()
    return carrier


LOCAL_POOLS = LocalPools()
_CARRIERS: dict[str, Callable[[], Carrier]] = {
    "local": lambda: LOCAL_POOLS.offer().carrier,
    "grpc": lambda: GRPC,
    "shm": shm_carrier,
    "tcp": lambda: tcp.carrier(SideDoor()),
    "collective": _collective,
    "nixl": nixl.carrier,
    "cuda_ipc": _cuda_ipc,
    "nccl": _collective,
    "grpc on paper": lambda: GRPC,
    "nccl on paper": _collective,
}


def _small(name: str) -> Carrier:
    return dataclasses.replace(_CARRIERS[name](), flow=SMALL)


CARRIERS = {name: functools.partial(_small, name) for name in _CARRIERS}
"""Every carrier that the contract suite runs, `collective` under the name of each of its backends' devices.

Their messages of two blocks go ahead of their checksums where the taker fetches, those of one block do not.
"""
ON_PAPER = {"grpc on paper": (0, 0), "nccl on paper": (0, 1)}
"""Those whose pools lie on devices that are none (`paper_gpu`), between the same two `devices_of` a process."""
ON_DEVICES = {"cuda_ipc": (0, 0), "nccl": (0, 1), **ON_PAPER}  # two ranks of NCCL do not share a device
"""Those whose pools lie on CUDA devices, and on which: the source's, the taker's."""
ON_HOSTS = tuple(sorted(CARRIERS.keys() - ON_DEVICES))
BETWEEN_PROCESSES = tuple(sorted(CARRIERS.keys() - {"local"}))


def each_of(names: Iterable[str]) -> list[Any]:
    """Parameters of a test: those that need devices are marked, and skipped by name where there are too few."""
    return [pytest.param(name, marks=_marks(name)) for name in sorted(names)]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    if name not in ON_DEVICES:
        return []
    if name in ON_PAPER:
        is_possible = importlib.import_module("paper_gpu.device").is_possible()
        return [pytest.mark.skipif(not is_possible, reason="on paper: no compiler, or there is a GPU")]
    needed = max(ON_DEVICES[name]) + 1
    found: int = importlib.import_module("device_pools").num_devices()
    reason = f"CUDA devices for {name}: {needed} needed, {found} here"
    return [pytest.mark.gpu, pytest.mark.skipif(found < needed, reason=reason)]


def devices_of(carrier: str) -> contextlib.AbstractContextManager[object]:
    """Have the devices that pools of a carrier lie on, where they are on paper."""
    if carrier not in ON_PAPER:
        return contextlib.nullcontext()
    on_paper: contextlib.AbstractContextManager[object] = importlib.import_module("paper_gpu.device").paper_gpu(2)
    return on_paper


def source_pool(carrier: str) -> PoolMemory | DevicePool:
    """A source's pool, filled, where that carrier wants it."""
    return _pool_of(carrier, 0)


def target_pool(carrier: str) -> PoolMemory | DevicePool:
    """A taker's pool, of zeros, where that carrier wants it."""
    return _pool_of(carrier, 1)


def _pool_of(carrier: str, end: int) -> PoolMemory | DevicePool:
    if carrier not in ON_DEVICES:
        return pool(filled=end == 0)
    pools = importlib.import_module("device_pools")
    made: DevicePool = pools.device_pool(filled=end == 0, device=ON_DEVICES[carrier][end])
    return made


def pool(num_blocks: int = NUM_BLOCKS, *, filled: bool) -> PoolMemory:
    """A pool in a file that others can map: every block differs from every other, or all are zeros."""
    fd = os.memfd_create("pagewire-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, num_blocks * BLOCK_BYTES)
        memory = PoolMemory.map(fd, block_bytes=BLOCK_BYTES, num_blocks=num_blocks)
    finally:
        os.close(fd)
    if filled:
        for block_id in range(num_blocks):
            memory.write(block_id, bytes((block_id * 31 + at * 7) % 251 for at in range(BLOCK_BYTES)))
    memory.seal()
    return memory


class Recorder:
    """What an end reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, tuple[ShipmentKey, ...]]] = []
        self.errors: list[PagewireError] = []  # what each of those was lost by
        self.sent: list[tuple[str, ShipmentKey, tuple[int, ...]]] = []
        self._changed = asyncio.Event()

    def on_lost(self, peer_id: str, keys: tuple[ShipmentKey, ...], error: PagewireError) -> None:
        self.lost.append((peer_id, keys))
        self.errors.append(error)
        self.note()

    def on_sent(self, peer_id: str, key: ShipmentKey, indices: tuple[int, ...]) -> None:
        self.sent.append((peer_id, key, indices))
        self.note()

    def on_carried(self, peer_id: str, batch: Batch) -> None:
        self.on_sent(peer_id, batch.key, tuple(batch.indices))

    def note(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class RecordingSink:
    """A sink that gives block i the id i, once `is_bound`, and remembers all; fails on a claim settled twice."""

    def __init__(self, recorder: Recorder, *, is_bound: bool = True) -> None:
        self.is_bound = is_bound
        self.asked: list[int] = []
        self.open: set[int] = set()
        self.placed: list[int] = []
        self.spoilt: list[int] = []
        self._recorder = recorder

    def claim(self, shipment_id: int, generation: int, indices: Sequence[int]) -> Sequence[Claim]:
        self.asked.extend(indices)
        self._recorder.note()
        if not self.is_bound:
            return [Claim(Verdict.WAIT)] * len(indices)
        assert self.open.isdisjoint(indices)
        self.open.update(indices)
        return [Claim(Verdict.PLACE, index) for index in indices]

    def settle(self, shipment_id: int, generation: int, indices: Sequence[int], is_intact: bool) -> None:
        assert self.open.issuperset(indices)
        self.open.difference_update(indices)
        (self.placed if is_intact else self.spoilt).extend(indices)
        self._recorder.note()


@contextlib.asynccontextmanager
async def serving(sender: StreamSender) -> AsyncIterator[str]:
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


def dial_to(address: str) -> Dial:
    """Return what dials a source there."""
    return functools.partial(grpc.aio.insecure_channel, address, options=CHANNEL_OPTIONS)


class CountedDial:
    """Dials a source, and counts the channels that were opened and those that were closed."""

    def __init__(self, address: str) -> None:
        self.num_opened = self.num_closed = 0
        self._dial = dial_to(address)

    def __call__(self) -> grpc.aio.Channel:
        channel = self._dial()
        self.num_opened += 1
        close = channel.close

        async def closed(grace: float | None = None) -> None:
            await close(grace)
            self.num_closed += 1

        channel.close = closed  # type: ignore[method-assign]
        return channel


@contextlib.asynccontextmanager
async def running(receiver: StreamReceiver) -> AsyncIterator[None]:
    """A receiver that keeps its stream."""
    task = asyncio.create_task(receiver.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def taking(
    port: int, carriers: tuple[Carrier, ...], recorder: Recorder, *, pod_id: str = "D", flow: Flow = SMALL,
    memory: BlockMemory | None = None,
) -> AsyncIterator[tuple[StreamReceiver, BlockMemory]]:  # fmt: skip
    """A taker whose stream is up, and its pool: `memory`, or a new one on the host."""
    target = memory or pool(filled=False)
    receiver = StreamReceiver(
        dial_to(f"127.0.0.1:{port}"), pod_id=pod_id, source_id="P", secret=SECRET, memory=target,
        on_lost=recorder.on_lost, carriers=carriers, flow=flow, times=FAST,
    )  # fmt: skip
    async with running(receiver):
        await receiver.connected(30)
        yield receiver, target
