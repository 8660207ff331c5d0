"""A source pod `P`, and with a taker `D` a transport: one handle, wherever the source runs.

The source of every transport is a process of its own (`source_process`), but that of `local`, which has both here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from faulty_carrier import Faults
from source_tree import ROOT
from transport_rigs import (
    CARRIERS,
    FAST,
    SECRET,
    SMALL,
    Recorder,
    RecordingSink,
    devices_of,
    pool,
    serving,
    source_pool,
    taking,
    target_pool,
)  # fmt: skip

from pagewire.core.errors import TransferFailed, from_cause
from pagewire.kvtransfer.transport import BlockMemory, Flow, LostCallback, Receiver, ShipmentKey
from pagewire.kvtransfer.transports.stream_sender import StreamSender


class SourceEnd:
    """The source's end itself: a filled pool, its streams, and the faults of its carrier."""

    def __init__(self, carrier: str, message_bytes: int, on_lost: LostCallback) -> None:
        self.memory, self.faults = source_pool(carrier), Faults()
        self.sender = StreamSender(
            pod_id="P", secret=SECRET, memory=self.memory, carriers=(self.faults.around(CARRIERS[carrier]()),),
            on_lost=on_lost, message_bytes=message_bytes, times=FAST,
        )  # fmt: skip

    async def do(self, order: dict[str, Any]) -> Any:
        """Carry out an order; returns the answer. Raises PagewireError."""
        match order["do"]:
            case "send":
                key = order["peer_id"], order["shipment_id"], order["generation"]
                self.sender.send(*key, [(index, block_id) for index, block_id in order["blocks"]])
            case "fence":
                await self.sender.fence(order["peer_id"], order["shipment_id"], order["generation"])
            case "connected":
                return self.sender.is_connected(order["peer_id"])
            case "counters":
                return dataclasses.asdict(self.sender.counters)
            case "spoil":
                self.memory.write(order["block_id"], bytes(self.memory.block_bytes))
            case "carried":
                return self.faults.num_carried
            case "fault":
                setattr(self.faults, order["name"], self.faults.num_carried + order["messages"])
            case other:
                raise ValueError(other)
        return None


class Source:
    """A source, here or elsewhere; see `Sender`."""

    port = 0

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

    async def carries(self, messages: int) -> None:
        """Wait until that many messages were given to the carrier, the one that fails or hangs among them."""
        async with asyncio.timeout(10):
            while await self._do("carried") < messages:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _do(self, what: str, **more: Any) -> Any:
        raise NotImplementedError


class SourceHere(Source):
    """A source in this process."""

    def __init__(self, end: SourceEnd, address: str) -> None:
        self.port = int(address.rpartition(":")[2])
        self._end = end

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, carrier: str, recorder: Recorder, message_bytes: int) -> AsyncIterator[SourceHere]:
        end = SourceEnd(carrier, message_bytes, recorder.on_lost)
        end.faults.on_carried = recorder.on_carried
        async with serving(end.sender) as address:
            yield cls(end, address)

    async def _do(self, what: str, **more: Any) -> Any:
        return await self._end.do({"do": what, **more})


class SourceProcess(Source):
    """A source in another process; `kill` is what it sounds like."""

    def __init__(self, process: asyncio.subprocess.Process, recorder: Recorder) -> None:
        self.process = process
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
            env={**os.environ, "PYTHONPATH": f"{support}{os.pathsep}{ROOT / 'src'}"},
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
                keys = tuple(ShipmentKey(*key) for key in line["keys"])
                self._recorder.on_lost(line["peer_id"], keys, from_cause(line["cause"], line["message"]))
            elif line.get("event") == "sent":
                self._recorder.on_sent(line["peer_id"], ShipmentKey(*line["key"]), tuple(line["indices"]))
            else:
                self._answers.pop(line["answer"]).set_result(line)


def started(carrier: str, recorder: Recorder, message_bytes: int) -> contextlib.AbstractAsyncContextManager[Source]:
    """A source where that carrier has its sources."""
    where = SourceHere if carrier == "local" else SourceProcess
    return where.start(carrier, recorder, message_bytes)


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
async def make_rig(name: str, flow: Flow = SMALL) -> AsyncIterator[Rig]:
    """Both ends of the transport `name`, over loopback."""
    p, d = Recorder(), Recorder()
    with devices_of(name):
        async with _rig(name, flow, p, d) as rig:
            yield rig


@contextlib.asynccontextmanager
async def _rig(name: str, flow: Flow, p: Recorder, d: Recorder) -> AsyncIterator[Rig]:
    async with (
        started(name, p, flow.message_bytes) as source,
        taking(source.port, (CARRIERS[name](),), d, flow=flow, memory=target_pool(name)) as (receiver, target),
    ):
        rig = Rig(source, receiver, target, (p, d))
        rig.disconnect = lambda: receiver.drop("the test says so")
        yield rig
