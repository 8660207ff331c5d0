"""A pool of blocks in the memory of a CUDA device: one tensor `[N, block_bytes]` of bytes.

Its memory is this process's own, or another's that is mapped here: a pod's front sees the pool that its engine made.
Whoever writes blocks records it (`wrote`) on the stream that writes, before it hands them on; the events are
interprocess ones, so that whoever reads in another process knows when its blocks are there. An engine waits for its
device before it tells of a block, so that a mapped pool has no events of its owner's to wait for.

Knows no transports and no requests. Invariants: no id outside the pool is ever touched; what comes from or goes to the
host is synchronous.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterable, Sequence

import torch
import xxhash

from pagewire.core.cuda_driver import CudaDriver, Export
from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.carrier import Move
from pagewire.kvtransfer.plan import Span, coalesce

NUM_EVENTS = 64


class DevicePool:
    """`blocks` is contiguous; raises ValueError where it is not `[N, block_bytes]` of uint8 on a CUDA device.

    Its memory comes from plain cudaMalloc: without `expandable_segments`, which cannot be mapped by other processes.
    """

    def __init__(self, blocks: torch.Tensor, num_events: int = NUM_EVENTS) -> None:
        if blocks.device.type != "cuda" or blocks.dtype != torch.uint8 or blocks.dim() != 2:
            raise ValueError(f"not a pool of bytes on a CUDA device: {blocks.dtype} {blocks.shape} on {blocks.device}")
        if not blocks.is_contiguous():
            raise ValueError("a pool whose blocks do not lie one behind the other")
        self.blocks = blocks  # [N, block_bytes]
        self.copies = torch.cuda.Stream(blocks.device)  # type: ignore[no-untyped-call]
        self.events = [_interprocess_event() for _ in range(num_events)]
        self._writes = [0]  # how many; shared with splits
        self._splits: dict[int, DevicePool] = {}
        self._mapping: _Mapping | None = None

    @classmethod
    def map(cls, device: str, export: Export, *, block_bytes: int, num_blocks: int) -> DevicePool:
        """Map another process's pool, which is on `device` as this process counts them.

        Raises TransferFailed where it cannot be mapped, or is smaller than that.
        """
        mapping = _Mapping(torch.device(device).index or 0, export, (num_blocks, block_bytes))
        try:
            pool = cls(torch.as_tensor(mapping, device=torch.device("cuda", mapping.device_index)), num_events=0)
        except RuntimeError as error:  # PyTorch has no room for a context of its own, or may not have one
            mapping.close()
            raise TransferFailed(f"what is mapped cannot be used: {error}") from error
        pool._mapping = mapping
        return pool

    def close(self) -> None:
        """Let go of the memory, which nothing may be copying; splits end with it. Any number of times."""
        self.blocks = self.blocks.new_empty((0, self.block_bytes))
        for split in self._splits.values():
            split.close()
        if self._mapping is not None:
            self._mapping.close()

    def export(self) -> Export:
        """Return how other processes of this host map it. Raises TransferFailed."""
        if self._mapping is not None:
            return self._mapping.export  # its owner's: what is mapped cannot be exported anew
        driver = CudaDriver(self.device_index)
        driver.use()
        return driver.export(self.address, self.blocks.nbytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.blocks.shape[1]

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return self.blocks.shape[0]

    @property
    def address(self) -> int:
        """Where block 0 lies on the device."""
        return self.blocks.data_ptr()

    @property
    def device_index(self) -> int:
        """Which device of this process."""
        return self.blocks.get_device()

    @property
    def has_writes(self) -> bool:
        """True once `wrote` was called."""
        return self._writes[0] > 0

    @property
    def last_write(self) -> int:
        """Which of `events` was recorded last: what was written until now is there once it has happened."""
        return (self._writes[0] - 1) % NUM_EVENTS

    def wrote(self, stream: torch.cuda.Stream) -> None:
        """Record what `stream` was given to write until now, behind all that was recorded before, by whatever stream.

        An event is used again after `NUM_EVENTS` records: whoever waits for an old one then waits for a later one,
        longer than it had to and never too short.
        """
        if self.has_writes:
            stream.wait_event(self.events[self.last_write])
        self.events[self._writes[0] % NUM_EVENTS].record(stream)
        self._writes[0] += 1

    def split(self, count: int) -> DevicePool:
        """Return the same memory as blocks of which `count` are one of ours; it ends with us. Raises ValueError."""
        if count == 1:
            return self
        if count < 1 or self.block_bytes % count:
            raise ValueError(f"a block of {self.block_bytes} bytes does not split into {count} equal parts")
        if count not in self._splits:
            split = copy.copy(self)
            split.blocks = self.blocks.view(self.num_blocks * count, self.block_bytes // count)
            split._splits = {}  # its own: one in common would keep all of them alive
            self._splits[count] = split
        return self._splits[count]

    def read(self, block_id: int) -> memoryview:
        """Return a copy of the block on the host. Raises IndexError."""
        host = bytearray(self.block_bytes)
        self._after_writes()
        with torch.cuda.stream(self.copies):
            torch.frombuffer(host, dtype=torch.uint8).copy_(self.blocks[self._checked(block_id)])
        self.copies.synchronize()
        return memoryview(host).toreadonly()

    def write(self, block_id: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes of the host into the block. Raises IndexError, ValueError on a wrong length."""
        if len(data) != self.block_bytes:
            raise ValueError(f"{len(data)} bytes for a block of {self.block_bytes}")
        with torch.cuda.stream(self.copies):
            self.blocks[self._checked(block_id)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self.copies.synchronize()

    def write_summed(self, block_id: int, data: bytes | bytearray | memoryview, seed: int) -> int:
        """Copy bytes of the host into the block; return xxh3_64 of what is there then. Raises as `write` does."""
        self.write(block_id, data)
        return xxhash.xxh3_64_intdigest(self.read(block_id), seed)

    def write_summed_from(self, block_id: int, address: int, seed: int) -> int:
        """The same, of the bytes of the host at `address`."""
        return self.write_summed(block_id, ctypes.string_at(address, self.block_bytes), seed)

    def copy_out(self, block_ids: Sequence[int], out: torch.Tensor) -> None:
        """Copy blocks into the rows of `out` `[n, block_bytes]` on the same device. Raises IndexError."""
        self._after_writes()
        self._copy([(self._checked(block_id), row) for row, block_id in enumerate(block_ids)], self.blocks, out)

    def copy_in(self, rows: torch.Tensor, moves: Sequence[Move]) -> None:
        """Copy rows of a `[n, block_bytes]` tensor of the same device into blocks. Raises IndexError."""
        self._copy([(position, self._checked(block_id)) for position, block_id in moves], rows, self.blocks)

    def _checked(self, block_id: int) -> int:
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block {block_id} of {self.num_blocks}")
        return block_id

    def _after_writes(self) -> None:
        if self.has_writes:
            self.copies.wait_event(self.events[self.last_write])

    def _copy(self, pairs: Iterable[tuple[int, int]], source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy rows; runs of adjacent ones are one copy."""
        size = self.block_bytes
        spans = coalesce([Span(row * size, to * size, size) for row, to in pairs])
        with torch.cuda.stream(self.copies):
            copy_spans(spans, source.view(-1), destination.view(-1))
        self.copies.synchronize()


class _Mapping:
    """Another process's memory in this one, as torch takes it without a copy: numba's `__cuda_array_interface__`."""

    def __init__(self, device_index: int, export: Export, shape: tuple[int, int]) -> None:
        self.device_index = device_index
        self.export = export
        self._driver = CudaDriver(device_index)
        self._driver.use()
        self._base: int | None = self._driver.map(export.handle)
        num_bytes = self._driver.size(self._base)
        if export.offset + shape[0] * shape[1] > num_bytes:
            self.close()
            raise TransferFailed(f"a pool of {shape[0]} x {shape[1]} bytes at {export.offset} of {num_bytes}")
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "|u1", "data": (self._base + export.offset, False), "version": 3,
        }  # fmt: skip

    def close(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            self._driver.use()
            self._driver.unmap(base)


def copy_spans(spans: Iterable[Span], source: torch.Tensor, destination: torch.Tensor) -> None:
    """Post the copies between two flat tensors of bytes on the current stream."""
    for start, to, length in spans:
        destination[to : to + length].copy_(source[start : start + length], non_blocking=True)


def _interprocess_event() -> torch.cuda.Event:
    return torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]
