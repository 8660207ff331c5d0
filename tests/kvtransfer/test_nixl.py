"""What is particular to NIXL: the source in another process, over host memory, and over TCP where a read takes time.

Proves that a read which is given up writes nothing afterwards, that a source which has let go is noticed, and that
cards and block ids are checked. Cannot prove RDMA or device memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from source_tree import ROOT
from transport_rigs import BLOCK_BYTES, NUM_BLOCKS, pool

from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports.nixl import NixlInlet, NixlOutlet
from pagewire.kvtransfer.wire import Ready

KEY = ShipmentKey(1, 1)
MANY = 16384  # blocks: enough bytes that a read over TCP is under way for a while


class Source:
    """A source process."""

    def __init__(self, process: asyncio.subprocess.Process, card: bytes) -> None:
        self.process = process
        self.card = card

    async def close(self) -> bool:
        """Let the source let go of its stream; False when it died instead."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        return await self.process.stdout.readline() == b"closed\n"


@contextlib.asynccontextmanager
async def a_source(num_blocks: int = NUM_BLOCKS, **environment: str) -> AsyncIterator[Source]:
    support = Path(__file__).parent.parent / "support"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(support / "nixl_source.py"), str(num_blocks),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{support}{os.pathsep}{ROOT / 'src'}", **environment},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            card = bytes.fromhex((await process.stdout.readline()).decode())
        yield Source(process, card)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def an_inlet(source: Source, target: PoolMemory, timeout_s: float = 10.0) -> AsyncIterator[NixlInlet]:
    inlet = NixlInlet(target, timeout_s)
    try:
        await inlet.open(source.card)
        yield inlet
    finally:
        inlet.close()


def ready(*block_ids: int, checksums: tuple[int, ...] = (1,)) -> Ready:
    return Ready(KEY, 0, checksums, block_ids=block_ids)


async def test_blocks_are_read_into_place() -> None:
    original, target = pool(filled=True), pool(filled=False)
    async with a_source() as source, an_inlet(source, target) as inlet:
        await inlet.place(ready(5, 6, 7, 60), [(0, 1), (1, 2), (2, 3), (3, 63)])
        assert [target.read(i) for i in (1, 2, 3, 63)] == [original.read(i) for i in (5, 6, 7, 60)]
        assert not any(target.read(4))


@pytest.mark.parametrize("block_id", [NUM_BLOCKS, 2**63])
async def test_blocks_outside_either_pool_are_refused(block_id: int) -> None:
    async with a_source() as source, an_inlet(source, pool(filled=False)) as inlet:
        with pytest.raises(ContractBroken, match="announced another"):
            await inlet.place(ready(block_id), [(0, 1)])
        with pytest.raises(IndexError):
            await inlet.place(ready(1), [(0, block_id)])


async def test_without_checksums_a_source_that_let_go_is_noticed_after_the_read() -> None:
    """The source's agent stays up for a moment after its stamp is void: reads work, and must not count."""
    target = pool(filled=False)
    outlet = NixlOutlet(pool(filled=True))
    inlet = NixlInlet(target, 10.0)
    await inlet.open(await outlet.open(b""))
    await inlet.place(ready(1, checksums=()), [(0, 1)])
    assert outlet._agent is not None
    outlet._agent.void_stamp()
    with pytest.raises(StreamLost, match="let go"):
        await inlet.place(ready(2, checksums=()), [(0, 2)])
    for end in (inlet, outlet):
        end.close()
        end.close()


async def test_a_source_that_closed_cannot_be_opened() -> None:
    async with a_source() as source:
        assert await source.close()
        with pytest.raises(TransferFailed):
            async with an_inlet(source, pool(filled=False), timeout_s=1.0):
                raise AssertionError


@pytest.mark.parametrize("how", ["cancelled", "timed out", "closed"])
async def test_a_read_that_is_given_up_writes_nothing_afterwards(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source stands still with a read under way, and goes on once that was given up."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    target = pool(MANY, filled=False)
    async with a_source(MANY) as source, an_inlet(source, target, 1.0 if how == "timed out" else 10.0) as inlet:
        source.process.send_signal(signal.SIGSTOP)
        placing = asyncio.create_task(inlet.place(ready(*range(MANY)), [(i, i) for i in range(MANY)]))
        await asyncio.sleep(0)
        if how == "cancelled":
            placing.cancel()
        elif how == "closed":
            inlet.close()
        with pytest.raises((TransferFailed, asyncio.CancelledError)):
            await placing
        before = [bytes(target.read(i)) for i in range(0, MANY, 256)]
        source.process.send_signal(signal.SIGCONT)
        await source.close()  # UCX ends a process whose peer left while it stood still: either way it had its turn
        assert [bytes(target.read(i)) for i in range(0, MANY, 256)] == before
        assert not all(any(block) for block in before), "the read was not over"


async def test_a_source_that_dies_fails_a_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    async with a_source() as source, an_inlet(source, pool(filled=False)) as inlet:
        source.process.kill()
        await source.process.wait()
        with pytest.raises(StreamLost):
            await inlet.place(ready(1), [(0, 1)])
        with pytest.raises(StreamLost):
            await inlet.place(ready(1), [(0, 1)])


@pytest.mark.parametrize("spoil", ["empty", "magic", "metadata", "name"])
async def test_a_card_is_checked(spoil: str) -> None:
    async with a_source() as source:
        card = source.card
        metadata_at = struct.calcsize("<4s32sQQiQ16s")
        source.card = {
            "empty": b"",
            "magic": b"x" + card[1:],
            "metadata": card[:metadata_at] + b"nonsense",
            "name": card[:4] + b"0" * 32 + card[36:],
        }[spoil]
        with pytest.raises(TransferFailed):
            async with an_inlet(source, pool(filled=False), timeout_s=1.0):
                raise AssertionError


async def test_a_pool_without_an_address_is_refused() -> None:
    class Elsewhere:
        block_bytes = BLOCK_BYTES
        num_blocks = NUM_BLOCKS

        def split(self, count: int) -> Elsewhere:
            raise NotImplementedError

        def read(self, block_id: int) -> memoryview:
            raise NotImplementedError

        def write(self, block_id: int, data: memoryview) -> None:
            raise NotImplementedError

        def write_summed(self, block_id: int, data: memoryview, seed: int) -> int:
            raise NotImplementedError

        def write_summed_from(self, block_id: int, address: int, seed: int) -> int:
            raise NotImplementedError

    with pytest.raises(TransferFailed, match="cannot be registered"):
        NixlOutlet(Elsewhere())
