"""What is particular to CUDA IPC, on one CUDA device and with a source process on it; see `test_cuda_ipc_copies` too.

Proves, where there is a device, that a copy waits for the kernel that writes its blocks, that a source which let go is
noticed, and that cards and block ids are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from ctypes.util import find_library
from pathlib import Path

import pytest
import torch
from device_pools import device_pool
from source_tree import ROOT
from transport_rigs import BLOCK_BYTES, NUM_BLOCKS, pool

from pagewire.core.cuda_driver import CudaDriver
from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed
from pagewire.core.token_door import TOKEN_BYTES
from pagewire.kvtransfer.plan import Span, coalesce, part_spans
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports import cuda_ipc
from pagewire.kvtransfer.transports.cuda_card import NUM_EVENTS
from pagewire.kvtransfer.transports.cuda_ipc import MAX_SPANS, CudaIpcInlet
from pagewire.kvtransfer.transports.device_pool import DevicePool, copy_spans
from pagewire.kvtransfer.wire import Ready

KEY = ShipmentKey(1, 1)
NO_DEVICE = not torch.cuda.is_available()
on_a_device = pytest.mark.skipif(NO_DEVICE, reason="no CUDA device")


def test_pools_on_a_host_are_refused() -> None:
    carrier = cuda_ipc.carrier()
    for make in (carrier.outlet, carrier.inlet):
        with pytest.raises(TransferFailed, match="not on a CUDA device"):
            make(pool(filled=False), "P")


@pytest.mark.skipif(find_library("cuda") is not None, reason="there is a CUDA driver")
def test_a_missing_driver_is_a_named_error() -> None:
    with pytest.raises(TransferFailed, match="no CUDA driver"):
        CudaDriver(0)


class Source:
    """A source process."""

    def __init__(self, process: asyncio.subprocess.Process, card: bytes) -> None:
        self.process = process
        self.card = card

    async def do(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line.encode() + b"\n")
        async with asyncio.timeout(30):
            return (await self.process.stdout.readline()).decode().strip()


@contextlib.asynccontextmanager
async def a_source() -> AsyncIterator[Source]:
    support = Path(__file__).parent.parent / "support"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(support / "cuda_source.py"),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 20,
        env={**os.environ, "PYTHONPATH": f"{support}{os.pathsep}{ROOT / 'src'}"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            card = bytes.fromhex((await process.stdout.readline()).decode())
        yield Source(process, card)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def ready(*block_ids: int, tag: int = NUM_EVENTS) -> Ready:
    return Ready(KEY, 0, (), block_ids=block_ids, tag=tag)


async def copy_some(inlet: CudaIpcInlet, target: DevicePool) -> None:
    """Copy a run of blocks and one apart from the source, and see that they are there and the next one is not."""
    original = pool(filled=True)
    await inlet.place(ready(5, 6, 7, 60), [(0, 1), (1, 2), (2, 3), (3, 63)])
    assert [target.read(i) for i in (1, 2, 3, 63)] == [original.read(i) for i in (5, 6, 7, 60)]
    assert not any(target.read(4))


@pytest.mark.gpu
@on_a_device
async def test_blocks_are_copied_from_pool_to_pool() -> None:
    target = device_pool(filled=False)
    async with a_source() as source:
        inlet = CudaIpcInlet(target)
        await inlet.open(source.card)
        await copy_some(inlet, target)
        for block_id in (NUM_BLOCKS, 2**63):
            with pytest.raises(ContractBroken, match="announced another"):
                await inlet.place(ready(block_id), [(0, 1)])
        with pytest.raises(IndexError):
            await inlet.place(ready(1), [(0, NUM_BLOCKS)])
        with pytest.raises(ContractBroken, match="event"):
            await inlet.place(ready(1, tag=NUM_EVENTS + 1), [(0, 1)])
        inlet.close()
        inlet.close()


@pytest.mark.gpu
@on_a_device
async def test_a_copy_waits_for_the_kernel_that_writes_its_blocks() -> None:
    target = device_pool(filled=False)
    async with a_source() as source:
        inlet = CudaIpcInlet(target)
        await inlet.open(source.card)
        for block_id in range(NUM_EVENTS + 2):  # round the ring, and once more
            number = block_id % NUM_BLOCKS
            tag = int(await source.do(f"write {number}"))
            await inlet.place(ready(number, tag=tag), [(0, number)])
            assert set(target.read(number)) == {number + 100}
        inlet.close()


@pytest.mark.gpu
@on_a_device
async def test_messages_are_copied_at_a_time_also_of_blocks_that_lie_apart() -> None:
    original, target = pool(filled=True), device_pool(filled=False)
    scattered = list(range(NUM_BLOCKS - 1, NUM_BLOCKS // 2, -1))
    assert len(scattered) > MAX_SPANS
    async with a_source() as source:
        inlet = CudaIpcInlet(target)
        await inlet.open(source.card)
        messages = [scattered, list(range(8)), [20, 11], list(range(24, 30))]
        await asyncio.gather(*(inlet.place(ready(*ids), list(enumerate(ids))) for ids in messages))
        for block_id in (block_id for ids in messages for block_id in ids):
            assert target.read(block_id) == original.read(block_id)
        placing = asyncio.create_task(inlet.place(ready(9), [(0, 9)]))
        await asyncio.sleep(0)
        inlet.close()
        with contextlib.suppress(StreamLost):
            await placing
        assert target.read(9) == original.read(9)
        with pytest.raises(StreamLost, match="not open"):
            await inlet.place(ready(10), [(0, 10)])


@pytest.mark.gpu
@on_a_device
async def test_a_source_that_let_go_is_noticed_after_the_copy() -> None:
    async with a_source() as source:
        inlet = CudaIpcInlet(device_pool(filled=False))
        await inlet.open(source.card)
        assert await source.do("close") == "closed"
        with pytest.raises(StreamLost, match="let go"):
            await inlet.place(ready(1), [(0, 1)])
        inlet.close()


@pytest.mark.gpu
@on_a_device
async def test_a_card_is_checked() -> None:
    async with a_source() as source:
        card, ids = source.card, 4 + 8 + TOKEN_BYTES + 8  # where the first handle is
        of_another_handle = card[:ids] + bytes(64) + card[ids + 64 :]
        for spoilt in (b"", b"x" + card[1:], of_another_handle, card[:-1]):
            inlet = CudaIpcInlet(device_pool(filled=False))
            with pytest.raises(TransferFailed):
                await inlet.open(spoilt)
            inlet.close()


@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_rows_are_copied_into_parts_and_out_of_them(num_parts: int) -> None:
    """On a CPU: what a device pool posts on its streams."""
    rows = torch.randint(0, 256, (6, BLOCK_BYTES), dtype=torch.uint8)
    parts = [torch.zeros(NUM_BLOCKS, BLOCK_BYTES // num_parts, dtype=torch.uint8) for _ in range(num_parts)]
    size, ids = BLOCK_BYTES, [3, 4, 5, 9, 0, 63]
    there = coalesce(Span(row * size, block_id * size, size) for row, block_id in enumerate(ids))
    copy_spans(part_spans(there, size, 1, num_parts), (rows,), parts)
    assert torch.equal(torch.cat(parts, dim=1)[ids], rows)
    assert int(torch.cat(parts, dim=1).any(dim=1).sum()) == len(ids)
    back = torch.zeros_like(rows)
    copy_spans(part_spans([Span(to, at, length) for at, to, length in there], size, num_parts, 1), parts, (back,))
    assert torch.equal(back, rows)


@pytest.mark.gpu
@on_a_device
@pytest.mark.parametrize("num_parts", [2, 4])
def test_a_device_pool_in_parts_has_whole_blocks(num_parts: int) -> None:
    """The parts of ranks, here on one device."""
    whole, size = pool(filled=True), BLOCK_BYTES // num_parts
    parts = DevicePool(*(torch.zeros(NUM_BLOCKS, size, dtype=torch.uint8, device="cuda:0") for _ in range(num_parts)))
    for block_id in range(NUM_BLOCKS):
        parts.write(block_id, whole.read(block_id))
    assert all(parts.read(block_id) == whole.read(block_id) for block_id in range(NUM_BLOCKS))
    assert parts.parts[1][5].tolist() == list(whole.read(5)[size : 2 * size])
    rows = torch.zeros(3, BLOCK_BYTES, dtype=torch.uint8, device="cuda:0")
    parts.copy_out([7, 8, 60], rows)
    assert [bytes(row.tolist()) for row in rows] == [bytes(whole.read(block_id)) for block_id in (7, 8, 60)]
    parts.copy_in(rows, [(2, 1), (0, 2)])
    assert (parts.read(1), parts.read(2)) == (whole.read(60), whole.read(7))
    with pytest.raises(ValueError, match="does not split"):
        parts.split(2)
    assert len(parts.export()) == num_parts


@pytest.mark.gpu
@on_a_device
@pytest.mark.parametrize("num_parts", [2, 4])
async def test_blocks_are_copied_into_a_pool_in_parts(num_parts: int) -> None:
    """From a pod of one rank to a pod of several."""
    size = BLOCK_BYTES // num_parts
    target = DevicePool(*(torch.zeros(NUM_BLOCKS, size, dtype=torch.uint8, device="cuda:0") for _ in range(num_parts)))
    async with a_source() as source:
        inlet = CudaIpcInlet(target)
        await inlet.open(source.card)
        await copy_some(inlet, target)
        inlet.close()


@pytest.mark.gpu
@on_a_device
def test_a_split_device_pool_is_the_same_memory_and_waits_for_the_same_writes() -> None:
    whole = device_pool(filled=False)
    split = whole.split(2)
    assert (split.num_blocks, split.block_bytes) == (whole.num_blocks * 2, whole.block_bytes // 2)
    whole.write(1, bytes([1]) * split.block_bytes + bytes([2]) * split.block_bytes)
    assert [bytes(split.read(part)[:1]) for part in (2, 3)] == [b"\1", b"\2"]
    whole.wrote(torch.cuda.current_stream())
    assert (split.has_writes, split.last_write) == (True, whole.last_write)
    with pytest.raises(ValueError, match="equal parts"):
        whole.split(7)
    assert whole.split(2) is split
    whole.close()
    assert (whole.num_blocks, split.num_blocks) == (0, 0)
