"""A pool of blocks in the memory of CUDA devices: P tensors `[N, block_bytes / P]` of bytes, mostly one.

There are several where a pod has several ranks: each has a piece of every block on its device, and side by side they
are the block. The memory is this process's own, or another's that is mapped here: a pod's front sees the pool that its
engine made. Whoever writes blocks records it (`wrote`) on the stream that writes, before it hands them on; the events
are interprocess ones, so that whoever reads in another process knows when its blocks are there. An engine waits for its
devices before it tells of a block, so that a mapped pool has no events of its owner's to wait for.

Knows no transports and no requests. Invariants: no id outside the pool is ever touched; what comes from or goes to the
host is synchronous.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
from collections.abc import Iterable, Sequence

import torch
import xxhash

from pagewire.core.cuda_driver import CudaDriver
from pagewire.core.cuda_export import Export
from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.carrier import Move
from pagewire.kvtransfer.plan import PartSpan, Span, coalesce, part_spans
from pagewire.kvtransfer.transports.cuda_card import NUM_EVENTS


class DevicePool:
    """The `parts` are contiguous; raises ValueError where they are not `[N, part_bytes]` of uint8 on CUDA devices.

    Their memory comes from plain cudaMalloc: without `expandable_segments`, which cannot be mapped by other processes.
    """

    def __init__(self, *parts: torch.Tensor, num_events: int = NUM_EVENTS) -> None:
        for part in parts:
            if part.device.type != "cuda" or part.dtype != torch.uint8 or part.dim() != 2:
                raise ValueError(f"not a pool of bytes on a CUDA device: {part.dtype} {part.shape} on {part.device}")
            if not part.is_contiguous():
                raise ValueError("a pool whose blocks do not lie one behind the other")
        self.parts = parts
        self.streams = {index: torch.cuda.Stream(index) for index in self.devices}  # type: ignore[no-untyped-call]
        self.events = [_interprocess_event() for _ in range(num_events)]
        self._writes = [0]  # how many; shared with splits
        self._splits: dict[int, DevicePool] = {}
        self._mappings: list[_Mapping] = []

    @classmethod
    def map(cls, devices: Sequence[str], exports: Sequence[Export], *, block_bytes: int, num_blocks: int) -> DevicePool:
        """Map another process's pool, each part on its device, as this process counts them.

        Raises TransferFailed where it cannot be mapped, or is smaller than that.
        """
        mappings: list[_Mapping] = []
        try:
            for device, export in zip(devices, exports, strict=True):
                shape = (num_blocks, block_bytes // len(exports))
                mappings.append(_Mapping(torch.device(device).index or 0, export, shape))
            pool = cls(*(mapping.blocks() for mapping in mappings), num_events=0)
        except BaseException:
            for mapping in mappings:
                mapping.close()
            raise
        pool._mappings = mappings
        return pool

    def close(self) -> None:
        """Let go of the memory, which nothing may be copying; splits end with it. Any number of times."""
        self.parts = tuple(part.new_empty((0, part.shape[1])) for part in self.parts)
        for split in self._splits.values():
            split.close()
        for mapping in self._mappings:
            mapping.close()

    def export(self) -> tuple[Export, ...]:
        """Return how other processes of this host map each part. Raises TransferFailed."""
        if self._mappings:
            return tuple(mapping.export for mapping in self._mappings)  # their owner's: none can be exported anew
        return tuple(_exported(part) for part in self.parts)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return sum(part.shape[1] for part in self.parts)

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return self.parts[0].shape[0]

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where block 0 lies in each part."""
        return tuple(part.data_ptr() for part in self.parts)

    @property
    def devices(self) -> tuple[int, ...]:
        """Which device of this process has each part."""
        return tuple(part.get_device() for part in self.parts)

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
        if count < 1 or self.block_bytes % count or len(self.parts) > 1:
            there = f"a block of {self.block_bytes} bytes in {len(self.parts)} parts"
            raise ValueError(f"{there} does not split into {count} equal parts")
        if count not in self._splits:
            split = copy.copy(self)
            split.parts = (self.parts[0].view(self.num_blocks * count, self.block_bytes // count),)
            split._splits = {}  # its own: one in common would keep all of them alive
            self._splits[count] = split
        return self._splits[count]

    def read(self, block_id: int) -> memoryview:
        """Return a copy of the block on the host. Raises IndexError."""
        host = bytearray(self.block_bytes)
        self.copy_out([block_id], torch.frombuffer(host, dtype=torch.uint8).view(1, -1))
        return memoryview(host).toreadonly()

    def write(self, block_id: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes of the host into the block. Raises IndexError, ValueError on a wrong length."""
        if len(data) != self.block_bytes:
            raise ValueError(f"{len(data)} bytes for a block of {self.block_bytes}")
        self.copy_in(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(1, -1), [(0, block_id)])

    def write_summed(self, block_id: int, data: bytes | bytearray | memoryview, seed: int) -> int:
        """Copy bytes of the host into the block; return xxh3_64 of what is there then. Raises as `write` does."""
        self.write(block_id, data)
        return xxhash.xxh3_64_intdigest(self.read(block_id), seed)

    def write_summed_from(self, block_id: int, address: int, seed: int) -> int:
        """The same, of the bytes of the host at `address`."""
        return self.write_summed(block_id, ctypes.string_at(address, self.block_bytes), seed)

    def copy_out(self, block_ids: Sequence[int], out: torch.Tensor) -> None:
        """Copy blocks into the rows of `out` `[n, block_bytes]` on any device. Raises IndexError."""
        if self.has_writes:
            for stream in self.streams.values():
                stream.wait_event(self.events[self.last_write])
        self._copy([(self._checked(block_id), row) for row, block_id in enumerate(block_ids)], self.parts, (out,))

    def copy_in(self, rows: torch.Tensor, moves: Sequence[Move]) -> None:
        """Copy rows of a `[n, block_bytes]` tensor of any device into blocks. Raises IndexError."""
        self._copy([(position, self._checked(block_id)) for position, block_id in moves], (rows,), self.parts)

    def _checked(self, block_id: int) -> int:
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block {block_id} of {self.num_blocks}")
        return block_id

    def _copy(
        self, pairs: Iterable[tuple[int, int]], source: Sequence[torch.Tensor], destination: Sequence[torch.Tensor]
    ) -> None:
        """Copy rows; runs of adjacent ones are one copy where they lie in the same parts."""
        size = self.block_bytes
        spans = coalesce([Span(row * size, to * size, size) for row, to in pairs])
        with contextlib.ExitStack() as streams:
            for stream in self.streams.values():
                streams.enter_context(torch.cuda.stream(stream))
            copy_spans(part_spans(spans, size, len(source), len(destination)), source, destination)
        for stream in self.streams.values():
            stream.synchronize()


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

    def blocks(self) -> torch.Tensor:
        """Return it as a tensor, which is of use until `close`. Raises TransferFailed."""
        try:
            return torch.as_tensor(self, device=torch.device("cuda", self.device_index))
        except RuntimeError as error:  # PyTorch has no room for a context of its own, or may not have one
            raise TransferFailed(f"what is mapped cannot be used: {error}") from error

    def close(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            self._driver.use()
            self._driver.unmap(base)


def copy_spans(
    spans: Iterable[PartSpan], sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor]
) -> None:
    """Post copies between the parts of two pools, `[N, part_bytes]` each, on the current streams."""
    for span in spans:
        source = _rows(sources[span.source_part], span.source, span)
        _rows(destinations[span.destination_part], span.destination, span).copy_(source, non_blocking=True)


def _rows(part: torch.Tensor, start: int, span: PartSpan) -> torch.Tensor:
    """Return the pieces of a span in a part: `[rows, length]`."""
    return part.as_strided((span.rows, span.length), (part.shape[1], 1), part.storage_offset() + start)


def _exported(part: torch.Tensor) -> Export:
    with torch.cuda.device(part.device):  # the calling thread's own again afterwards
        driver = CudaDriver(part.get_device())
        driver.use()
        return driver.export(part.data_ptr(), part.nbytes)


def _interprocess_event() -> torch.cuda.Event:
    return torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]
