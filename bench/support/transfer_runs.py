"""One transport between two processes, or within one, and the raw limits beside it: measured in turn, repeat by repeat.

Payload is counted once. A time runs from the moment at which the source began to the moment at which the last block was
verified, on the monotonic clock that both processes share. Raw limits have no checksums.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import socket
import statistics
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc
from processes import free_port
from transfer_source import BARE_METHOD, HOST, SECRET, Source, carriers_of, make_pool, pool_for, serving

from pagewire.kvtransfer.carrier import Carrier, Inlet, Move, spans
from pagewire.kvtransfer.effects import Verdict
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import BlockMemory
from pagewire.kvtransfer.transports.local import LocalPools
from pagewire.kvtransfer.transports.stream import CHANNEL_OPTIONS
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.kvtransfer.wire import Ready

GB = 1e9
COALESCING = ("nixl", "cuda_ipc")  # runs of adjacent blocks are one descriptor


class Reached(Protocol):
    """A source: its ports, and what it ships by."""

    ports: dict[str, int]
    carriers: Sequence[Carrier]

    async def tell(self, what: str, *numbers: int) -> None:
        """Have it do what it gives no answer to."""
        ...

    async def ask(self, what: str, *numbers: int) -> dict[str, float]:
        """Have it do something; returns its answer."""
        ...


class PlacingSink:
    """Gives block i the id i, or as many ids later, and says when all are there."""

    def __init__(self, num_blocks: int, first_block_id: int = 0) -> None:
        self._first_block_id = first_block_id
        self._missing = num_blocks
        self.first_s = 0.0
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def claim(self, shipment_id: int, generation: int, indices: Sequence[int]) -> Sequence[tuple[Verdict, int]]:
        """See `Sink`."""
        return list(
            zip(itertools.repeat(Verdict.PLACE), [self._first_block_id + index for index in indices], strict=False)
        )

    def settle(self, shipment_id: int, generation: int, indices: Sequence[int], is_intact: bool) -> None:
        """See `Sink`."""
        if not is_intact:
            raise SystemExit(f"blocks {indices} are corrupt")
        self.first_s = self.first_s or time.perf_counter()
        self._missing -= len(indices)
        if not self._missing:
            self.done.set_result(time.perf_counter())


class Tally:
    """What a taker has had copied since somebody last asked: noted while it is measured, counted when asked for."""

    def __init__(self) -> None:
        self._noted: list[Callable[[], int]] = []

    def note(self, count: Callable[[], int]) -> None:
        """Have `count` give the descriptors of one placement."""
        self._noted.append(count)

    def taken(self) -> int:
        """Return the descriptors of all that was noted, and forget it."""
        noted, self._noted = self._noted, []
        return sum(count() for count in noted)


@dataclass(slots=True)
class Figures:
    """What repeats of one size gave."""

    num_bytes: int
    num_blocks: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: list[float] = field(default_factory=list)
    messages: int = 0
    descriptors: int = 0

    def rate(self, way: str, *, best: bool = False) -> float:
        """GB/s of the median repeat, or the best."""
        seconds = self.seconds[way]
        return self.num_bytes / (min(seconds) if best else statistics.median(seconds)) / GB


class Bench:
    """A taker, with its source in another process."""

    def __init__(
        self,
        source: Reached,
        memory: BlockMemory,
        receiver: StreamReceiver,
        channel: grpc.aio.Channel,
        connection: socket.socket,
        tally: Tally,
    ) -> None:
        self.source = source
        self._memory = memory
        self._tally = tally
        self.receiver = receiver
        self.channel = channel
        self.connection = connection
        self._shipments = 0
        self._first_s = 0.0  # until the first blocks of the latest were there
        self._gloo: Any = None
        self._device: Any = None
        self._copied = memoryview(b"")

    @property
    def memory(self) -> PoolMemory:
        """The taker's pool, on the host."""
        assert isinstance(self._memory, PoolMemory)
        return self._memory

    async def ship(self, num_blocks: int) -> float:
        """Seconds of one shipment."""
        self._shipments += 1
        sink = PlacingSink(num_blocks)
        self.receiver.register(self._shipments, 1, sink)
        await self.source.tell("ship", self._shipments, num_blocks)
        ended_s = await sink.done
        self.receiver.unregister(self._shipments, 1)
        began_s = (await self.source.ask("began"))["began"]
        self._first_s = sink.first_s - began_s
        return ended_s - began_s

    async def tcp(self, num_blocks: int) -> float:
        """Seconds of the same bytes through a socket, in pieces of 2 MiB."""
        into = self.memory.view[: num_blocks * self.memory.block_bytes]
        asked = asyncio.create_task(self.source.ask("tcp", num_blocks, 2 << 20))
        await asyncio.to_thread(_receive, self.connection, into)
        ended_s = time.perf_counter()
        return ended_s - (await asked)["began"]

    async def bare(self, num_blocks: int) -> float:
        """Seconds of the same bytes through gRPC and into the pool, in pieces of 2 MiB, with nothing around them."""
        call: grpc.aio.StreamStreamCall[bytes, bytes] = self.channel.stream_stream(BARE_METHOD)()
        await call.write(f"{num_blocks} {2 << 20}".encode())
        began_s: float = struct.unpack("<d", await call.read())[0]  # type: ignore[arg-type]
        at, size = 0, num_blocks * self.memory.block_bytes
        while at < size:
            piece = await call.read()
            assert isinstance(piece, bytes)
            self.memory.view[at : at + len(piece)] = piece
            at += len(piece)
        ended_s = time.perf_counter()
        call.cancel()
        return ended_s - began_s

    async def memcpy(self, num_blocks: int) -> float:
        """Seconds of one copy of the same bytes within this process."""
        num_bytes = num_blocks * self.memory.block_bytes
        if self._copied.nbytes < num_bytes:
            self._copied = memoryview(bytearray(self.memory.view))
        start_s = time.perf_counter()
        self.memory.view[:num_bytes] = self._copied[:num_bytes]
        return time.perf_counter() - start_s

    async def woken(self, num_blocks: int) -> float:
        """Seconds of one such copy, from the moment at which the source sent the byte that we wait for to begin it."""
        await self.source.tell("wake")
        self.connection.recv(1)
        await self.memcpy(num_blocks)
        ended_s = time.perf_counter()
        return ended_s - (await self.source.ask("began"))["began"]

    async def device(self, num_blocks: int) -> float:
        """Seconds of one copy of the same bytes within the device."""
        if self._device is None:
            self._device = importlib.import_module("device").DeviceCopy(self._memory)
        seconds: float = self._device.seconds(num_blocks)
        return seconds

    async def gloo(self, num_blocks: int) -> float:
        """Seconds of the same bytes through a communicator, in pieces of 4 MiB."""
        if self._gloo is None:
            port = free_port()
            asked = asyncio.create_task(self.source.ask("gloo", port))
            await asyncio.sleep(0)  # the question goes out before we wait for its answer in a thread
            self._gloo = await asyncio.to_thread(importlib.import_module("gloo").GlooPair, port, 1)
            await asked
        whole = self.memory.view[: num_blocks * self.memory.block_bytes]
        asking = asyncio.create_task(self.source.ask("send", num_blocks, 4 << 20))
        ended_s: float = await asyncio.to_thread(self._gloo.receive, whole, 4 << 20)
        return ended_s - (await asking)["began"]

    async def measure(self, num_blocks: int, ways: tuple[str, ...], repeats: int) -> Figures:
        """Repeat everything, one after another; the first repeat warms up."""
        figures = Figures(num_blocks * self._memory.block_bytes, num_blocks)
        for repeat in range(repeats + 1):
            before, cpu_s = await self.source.ask("cpu"), time.process_time()
            messages = self.receiver.counters.messages
            self._tally.taken()
            seconds = await self.ship(num_blocks)
            if repeat:
                after = await self.source.ask("cpu")
                figures.cpu_s.append(after["cpu"] - before["cpu"] + time.process_time() - cpu_s)
                figures.messages = self.receiver.counters.messages - messages
                figures.descriptors = self._tally.taken()
                figures.seconds.setdefault("ship", []).append(seconds)
                figures.seconds.setdefault("first", []).append(self._first_s)
            for way in ways:
                run: Callable[[int], Awaitable[float]] = getattr(self, way)
                seconds = await run(num_blocks)
                if repeat:
                    figures.seconds.setdefault(way, []).append(seconds)
        return figures


@contextlib.asynccontextmanager
async def bench(transport: str, block_kib: int, num_blocks: int) -> AsyncIterator[Bench]:
    """Both ends, with the stream up by that very transport."""
    tally = Tally()
    memory = pool_for(transport, block_kib << 10, num_blocks)
    async with (_source_here if transport == "local" else _source_process)(transport, block_kib, num_blocks) as source:
        with socket.create_connection((HOST, source.ports["tcp"])) as connection:
            dial = functools.partial(
                grpc.aio.insecure_channel, f"{HOST}:{source.ports['grpc']}", options=CHANNEL_OPTIONS
            )
            async with dial() as channel:  # of bare gRPC
                receiver = StreamReceiver(
                    dial, pod_id="D", source_id="P", secret=SECRET, memory=memory,
                    on_lost=lambda _peer, _keys, _error: None,
                    carriers=[counting(carrier, tally) for carrier in source.carriers],
                )  # fmt: skip
                keeper = asyncio.create_task(receiver.run())
                try:
                    await receiver.connected(30)
                    yield Bench(source, memory, receiver, channel, connection, tally)
                finally:
                    keeper.cancel()
                    await asyncio.gather(keeper, return_exceptions=True)


class _SourceProcess:
    """In a process of its own; see `transfer_source`."""

    def __init__(self, process: asyncio.subprocess.Process, carriers: Sequence[Carrier]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.ports: dict[str, int] = {}
        self.carriers = carriers
        self._stdin, self._stdout = process.stdin, process.stdout

    async def tell(self, what: str, *numbers: int) -> None:
        """See `Reached`."""
        self._stdin.write((" ".join(map(str, (what, *numbers))) + "\n").encode())

    async def ask(self, what: str, *numbers: int) -> dict[str, float]:
        """See `Reached`."""
        await self.tell(what, *numbers)
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """The next line."""
        answer: dict[str, Any] = json.loads(await self._stdout.readline())
        return answer


class _SourceHere:
    """In this process."""

    def __init__(self, source: Source, carriers: Sequence[Carrier]) -> None:
        self.ports = source.ports
        self.carriers = carriers
        self._source = source

    async def tell(self, what: str, *numbers: int) -> None:
        """See `Reached`."""
        await self._source.do(what, *numbers)

    async def ask(self, what: str, *numbers: int) -> dict[str, float]:
        """See `Reached`; its processor time is ours already."""
        return {**(await self._source.do(what, *numbers) or {}), "cpu": 0.0}


@contextlib.asynccontextmanager
async def _source_process(transport: str, block_kib: int, num_blocks: int) -> AsyncIterator[Reached]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(Path(__file__).parent / "transfer_source.py"), transport, str(block_kib),
        str(num_blocks), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        source = _SourceProcess(process, carriers_of(transport))
        source.ports = await source.answer()
        yield source
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def _source_here(_transport: str, block_kib: int, num_blocks: int) -> AsyncIterator[Reached]:
    carriers = (LocalPools().offer().carrier,)
    async with serving(carriers, make_pool(block_kib << 10, num_blocks)) as source:
        yield _SourceHere(source, carriers)


def counting(carrier: Carrier, tally: Tally) -> Carrier:
    """The same carrier; what its takers have copied is counted, descriptor by descriptor, as each carrier has it."""

    def inlet(memory: BlockMemory, source_id: str) -> Inlet:
        end = carrier.inlet(memory, source_id)
        place = end.place

        async def counted(ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
            if carrier.name in COALESCING:
                tally.note(lambda: len(spans(ready, moves, memory, num_source_blocks=1 << 63)))
            else:
                tally.note(lambda: len(moves))
            return await place(ready, moves)

        end.place = counted  # type: ignore[method-assign]
        return end

    return dataclasses.replace(carrier, inlet=inlet)


def _receive(connection: socket.socket, target: memoryview) -> None:
    got = 0
    while got < target.nbytes:
        count = connection.recv_into(target[got:])
        if not count:
            raise EOFError("the source is gone")
        got += count
