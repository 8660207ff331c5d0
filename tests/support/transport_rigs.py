"""A source pod `P` and a taker `D` joined by a transport, for the contract suite: one handle for all.

A networked transport's source is a process of its own (`source_process`), its taker the test; `local` has both here.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import grpc

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.carrier import Carrier
from pagewire.kvtransfer.effects import Claim, Verdict
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import BlockMemory, Flow, Receiver, ShipmentKey, TransportTimes
from pagewire.kvtransfer.transports import nixl
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.local import LocalReceiver, LocalSender
from pagewire.kvtransfer.transports.shm import shm_carrier
from pagewire.kvtransfer.transports.stream import CHANNEL_OPTIONS
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.kvtransfer.transports.stream_sender import StreamSender

BLOCK_BYTES = 1024
NUM_BLOCKS = 64
SECRET = b"cluster secret"
FAST = TransportTimes(
    connect_s=10.0, write_s=5.0, place_s=5.0, credit_s=1.0, reconnect_min_s=0.01, reconnect_max_s=0.02
)
SMALL = Flow(window_bytes=8 * BLOCK_BYTES, message_bytes=2 * BLOCK_BYTES)


def _collective() -> Carrier:
    collective = importlib.import_module("pagewire.kvtransfer.transports.collective")  # torch, only where it is used
    carrier: Carrier = collective.carrier(collective.CollectiveOptions(host="127.0.0.1", timeout_s=4.0))
    return carrier


CARRIERS: dict[str, Callable[[], Carrier]] = {
    "grpc": lambda: GRPC,
    "shm": shm_carrier,
    "collective": _collective,
    "nixl": nixl.carrier,
}
"""Every carrier that the contract suite runs on this machine."""


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
    """A sink that gives block i the id i, once `is_bound`, and remembers all; fails on a claim settled twice."""

    def __init__(self, recorder: Recorder, *, is_bound: bool = True) -> None:
        self.is_bound = is_bound
        self.asked: list[int] = []
        self.open: set[int] = set()
        self.placed: list[int] = []
        self.spoilt: list[int] = []
        self._recorder = recorder

    def claim(self, shipment_id: int, generation: int, block_index: int) -> Claim:
        self.asked.append(block_index)
        self._recorder.note()
        if not self.is_bound:
            return Claim(Verdict.WAIT)
        assert block_index not in self.open
        self.open.add(block_index)
        return Claim(Verdict.PLACE, block_index)

    def settle(self, shipment_id: int, generation: int, block_index: int, is_intact: bool) -> None:
        self.open.remove(block_index)
        (self.placed if is_intact else self.spoilt).append(block_index)
        self._recorder.note()


class Source(Protocol):
    """The source's end, here or elsewhere; see `Sender`."""

    async def send(self, peer_id: str, shipment_id: int, generation: int, blocks: list[tuple[int, int]]) -> None: ...

    async def fence(self, peer_id: str, shipment_id: int, generation: int) -> None: ...

    async def is_connected(self, peer_id: str) -> bool: ...

    async def counters(self) -> dict[str, int]: ...


class LocalSource:
    """A `LocalSender`, as a `Source`."""

    def __init__(self, sender: LocalSender) -> None:
        self._sender = sender

    async def send(self, peer_id: str, shipment_id: int, generation: int, blocks: list[tuple[int, int]]) -> None:
        self._sender.send(peer_id, shipment_id, generation, blocks)

    async def fence(self, peer_id: str, shipment_id: int, generation: int) -> None:
        await self._sender.fence(peer_id, shipment_id, generation)

    async def is_connected(self, peer_id: str) -> bool:
        return self._sender.is_connected(peer_id)

    async def counters(self) -> dict[str, int]:
        counters = self._sender.counters
        return {"blocks": counters.blocks, "bytes": counters.bytes, "messages": counters.messages}


class SourceProcess:
    """A source in another process, as a `Source`; `kill` is what it sounds like."""

    def __init__(self, process: asyncio.subprocess.Process, recorder: Recorder) -> None:
        self.process = process
        self.port = 0
        self._recorder = recorder
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, carrier: str, recorder: Recorder, message_bytes: int) -> AsyncIterator[SourceProcess]:
        support = Path(__file__).parent
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", str(support / "source_process.py"), carrier, str(message_bytes),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(support)},
        )  # fmt: skip
        source = cls(process, recorder)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                source.port = json.loads(await process.stdout.readline())["port"]
            listening = asyncio.create_task(source._listen(process.stdout))
            try:
                yield source
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
        finally:
            source.kill()
            await process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def send(self, peer_id: str, shipment_id: int, generation: int, blocks: list[tuple[int, int]]) -> None:
        await self._do("send", peer_id=peer_id, shipment_id=shipment_id, generation=generation, blocks=blocks)

    async def fence(self, peer_id: str, shipment_id: int, generation: int) -> None:
        await self._do("fence", peer_id=peer_id, shipment_id=shipment_id, generation=generation)

    async def is_connected(self, peer_id: str) -> bool:
        return bool(await self._do("connected", peer_id=peer_id))

    async def counters(self) -> dict[str, int]:
        counters: dict[str, int] = await self._do("counters")
        return counters

    async def spoil(self, block_id: int) -> None:
        """Let a block of the source change."""
        await self._do("spoil", block_id=block_id)

    async def fault(self, name: str, messages: int) -> None:
        """Have the source's end of the carrier fail or hang (a field of `Faults`) after so many messages more."""
        await self._do("fault", name=name, messages=messages)

    async def _do(self, what: str, **more: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"number": number, "do": what, **more}).encode() + b"\n")
        async with asyncio.timeout(10):
            answered = await answer
        if "error" in answered:
            raise TransferFailed(answered["error"])
        return answered["value"]

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        while text := await stdout.readline():
            line = json.loads(text)
            if line.get("event") == "lost":
                self._recorder.on_lost(line["peer_id"], tuple(ShipmentKey(*key) for key in line["keys"]))
            elif line.get("event") == "sent":
                self._recorder.on_sent(line["peer_id"], ShipmentKey(*line["key"]), tuple(line["indices"]))
            else:
                self._answers.pop(line["answer"]).set_result(line)


class Rig:
    """Both ends of a transport between pods `P` and `D`."""

    def __init__(
        self, source: Source, receiver: Receiver, target: BlockMemory, recorders: tuple[Recorder, Recorder]
    ) -> None:
        self.source = source
        self.receiver = receiver
        self.original = pool(filled=True)
        self.target = target
        self.at_source, self.at_taker = recorders
        self.disconnect: Callable[[], None] = lambda: None

    def sink(self, *, is_bound: bool = True) -> RecordingSink:
        return RecordingSink(self.at_taker, is_bound=is_bound)

    def matches(self, indices: list[int]) -> bool:
        return all(self.original.read(index) == self.target.read(index) for index in indices)


@contextlib.asynccontextmanager
async def local_rig(flow: Flow = SMALL) -> AsyncIterator[Rig]:
    """Within the process, no network."""
    target = pool(filled=False)
    p, d = Recorder(), Recorder()
    sender = LocalSender(pod_id="P", memory=pool(filled=True), on_lost=p.on_lost, on_sent=p.on_sent)
    receiver = LocalReceiver(sender, pod_id="D", memory=target, on_lost=d.on_lost, flow=flow)
    receiver.connect()
    rig = Rig(LocalSource(sender), receiver, target, (p, d))

    def reconnect() -> None:
        receiver.disconnect()
        asyncio.get_running_loop().call_soon(receiver.connect)

    rig.disconnect = reconnect
    yield rig


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
    port: int, carriers: tuple[Carrier, ...], recorder: Recorder, *, pod_id: str = "D", flow: Flow = SMALL
) -> AsyncIterator[tuple[StreamReceiver, PoolMemory]]:
    """A taker whose stream is up, and its pool."""
    target = pool(filled=False)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
        receiver = StreamReceiver(
            channel, pod_id=pod_id, source_id="P", secret=SECRET, memory=target, on_lost=recorder.on_lost,
            carriers=carriers, flow=flow, times=FAST,
        )  # fmt: skip
        async with running(receiver):
            await receiver.connected(30)
            yield receiver, target


@contextlib.asynccontextmanager
async def networked_rig(name: str, flow: Flow = SMALL) -> AsyncIterator[Rig]:
    """Over loopback, from another process."""
    p, d = Recorder(), Recorder()
    async with (
        SourceProcess.start(name, p, flow.message_bytes) as source,
        taking(source.port, (CARRIERS[name](),), d, flow=flow) as (receiver, target),
    ):
        rig = Rig(source, receiver, target, (p, d))
        rig.disconnect = lambda: receiver.drop("the test says so")
        yield rig


def rigs() -> tuple[str, ...]:
    """The transports that there are."""
    return ("local", *CARRIERS)


def make_rig(name: str, flow: Flow = SMALL) -> contextlib.AbstractAsyncContextManager[Rig]:
    """Both ends of the transport `name`."""
    return local_rig(flow) if name == "local" else networked_rig(name, flow)
