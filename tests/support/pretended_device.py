"""A CUDA device that is none: what is posted on its one stream happens when the test says so. Pools lie on the host.

In place of the driver and of torch's events in `cuda_ipc`, both ends in one process. Proves when a copy is posted, what
is waited for and what is right afterwards; cannot show what CUDA does.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transport_rigs import BLOCK_BYTES, NUM_BLOCKS, pool

from pagewire.core.cuda_export import HANDLE_BYTES, Export
from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transports import cuda_ipc
from pagewire.kvtransfer.transports.cuda_card import NUM_EVENTS
from pagewire.kvtransfer.transports.device_pool import DevicePool


class PretendedDevice:
    """The stream, in the order of posting; `log` is what was asked for, and what happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_running = True  # what is posted has happened
        self.copy_fails_at: int | None = None  # the number of a copy
        self.maps = True  # else as the driver between containers that share too little
        self.num_copies = 0
        self.num_unmapped = 0
        self.idle = threading.Condition()
        self._posted: deque[Callable[[], object]] = deque()
        self.all = [self]
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(cuda_ipc, "CudaDriver", lambda index: PretendedDriver(self.all[index]))
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: PretendedEvent())

    def another(self) -> PretendedDevice:
        """Return the next device of this process, with a stream of its own."""
        made, known = PretendedDevice(self._monkeypatch), self.all
        self._monkeypatch.setattr(cuda_ipc, "CudaDriver", lambda index: PretendedDriver(known[index]))
        known.append(made)
        made.all = known
        return made

    @property
    def num_posted(self) -> int:
        """How much has not happened yet: copies, and events behind them."""
        return len(self._posted)

    def post(self, what: Callable[[], object]) -> None:
        with self.idle:
            self._posted.append(what)
            if self.is_running:
                self.run()

    def run(self, num: int | None = None) -> None:
        """Have the next `num` things happen, or all."""
        with self.idle:
            for _ in range(len(self._posted) if num is None else num):
                self._posted.popleft()()
            self.idle.notify_all()

    def synchronize(self) -> None:
        """As a stream's."""
        with self.idle:
            assert self.idle.wait_for(lambda: not self._posted, 10)


class PretendedEvent:
    """Happens when the stream gets there; one that was never recorded has happened."""

    def __init__(self) -> None:
        self.has_happened = True

    def record(self, stream: _Stream) -> None:
        self.has_happened = False
        stream.device.post(lambda: setattr(self, "has_happened", True))

    def query(self) -> bool:
        return self.has_happened


class PretendedDriver:
    """A handle says where the pool lies in this process."""

    def __init__(self, device: PretendedDevice) -> None:
        self._device = device
        self._sizes: dict[int, int] = {}

    def use(self) -> None:
        pass

    def map(self, handle: bytes) -> int:
        if not self._device.maps:
            raise TransferFailed("cuIpcOpenMemHandle_v2: the test says so")
        base, size = int.from_bytes(handle[:8], "little"), int.from_bytes(handle[8:16], "little")
        self._sizes[base] = size
        return base

    def size(self, base: int) -> int:
        return self._sizes[base]

    def unmap(self, base: int) -> None:
        assert not self._device.num_posted, "a copy out of it has not ended"
        del self._sizes[base]
        self._device.num_unmapped += 1

    def copy(self, destination: int, source: int, num_bytes: int, _stream: object) -> None:
        device = self._device
        number, device.num_copies = device.num_copies, device.num_copies + 1
        if number == device.copy_fails_at:
            raise TransferFailed("the test says so")
        device.post(lambda: ctypes.memmove(destination, source, num_bytes))

    def copy_rows(
        self, destination: int, source: int, num_bytes: int, pitches: tuple[int, int], num_rows: int, _stream: object
    ) -> None:
        def copy() -> None:
            for row in range(num_rows):
                ctypes.memmove(destination + row * pitches[0], source + row * pitches[1], num_bytes)

        self._device.num_copies += 1
        self._device.post(copy)


class PretendedPool(DevicePool):
    """A pool on that device, a part in each of the `hosts`; where there are more devices one on each.

    Its events are never recorded, but by a test.
    """

    def __init__(self, device: PretendedDevice, *hosts: PoolMemory) -> None:
        self._indices = tuple(number % len(device.all) for number in range(len(hosts)))
        self.hosts = hosts
        self.parts = tuple(torch.frombuffer(host.view, dtype=torch.uint8).view(host.num_blocks, -1) for host in hosts)
        self.streams: Any = {index: _Stream(device.all[index]) for index in self._indices}
        self.events: list[Any] = []
        self._writes = [0]

    @property
    def devices(self) -> tuple[int, ...]:
        return self._indices

    def split(self, count: int) -> DevicePool:
        assert count == 1
        return self

    def read(self, block_id: int) -> memoryview:
        return memoryview(b"".join(host.read(block_id) for host in self.hosts))

    def write(self, block_id: int, data: bytes | bytearray | memoryview) -> None:
        assert len(data) == self.block_bytes
        size = self.block_bytes // len(self.hosts)
        for number, host in enumerate(self.hosts):
            host.write(block_id, data[number * size : (number + 1) * size])

    def export(self) -> tuple[Export, ...]:
        return tuple(_export(host) for host in self.hosts)


def _export(host: PoolMemory) -> Export:
    told = host.address.to_bytes(8, "little") + (host.num_blocks * host.block_bytes).to_bytes(8, "little")
    return Export(told.ljust(HANDLE_BYTES, b"\0"), 0)


class _Stream:
    """Of a pool: there is one of the device."""

    cuda_stream = 1

    def __init__(self, device: PretendedDevice) -> None:
        self.device = device
        self.synchronize = device.synchronize


def pretended_pool(device: PretendedDevice, *, filled: bool, num_parts: int = 1) -> PretendedPool:
    """As `transport_rigs.pool`, in so many parts."""
    whole = pool(filled=filled)
    if num_parts == 1:
        return PretendedPool(device, whole)
    size = BLOCK_BYTES // num_parts
    hosts = [
        PoolMemory(memoryview(bytearray(NUM_BLOCKS * size)), block_bytes=size, num_blocks=NUM_BLOCKS)
        for _ in range(num_parts)
    ]
    made = PretendedPool(device, *hosts)
    for block_id in range(NUM_BLOCKS):
        made.write(block_id, whole.read(block_id))
    return made


class Unwritten:
    """A source's event that the taker has opened, and that happens when a test says so."""

    def __init__(self) -> None:
        self.has_happened = False

    def query(self) -> bool:
        return self.has_happened


def unwritten_events() -> list[Unwritten]:
    """As many as a source has."""
    return [Unwritten() for _ in range(NUM_EVENTS)]
