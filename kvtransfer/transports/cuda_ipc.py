"""Blocks between CUDA devices of one host: the taker maps the source's pool once and copies block to block.

    source  exports its pool and its events; a message's tag is the event that its blocks were written before
    taker   a thread waits for that event, within a deadline, has the copy stream copy, and waits for that

No byte passes a CPU and no checksum is told. That what was copied was still the source's to lend is seen afterwards, by
its lifeline: it breaks before the source lets its blocks go. A copy cannot be called back: so it is posted only when
what it depends on, which is another process's to do, has happened, and then ends by itself.

Knows cards and blocks; CUDA is `CudaDriver`'s and torch's. Invariant: the source's pool stays mapped until our last
copy has ended.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

import torch

from pagewire.core.cuda_driver import HANDLE_BYTES, CudaDriver, Export
from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed, TransferTimeout
from pagewire.kvtransfer.carrier import Carrier, Move, spans
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.plan import Span
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.transports.device_pool import NUM_EVENTS, DevicePool
from pagewire.kvtransfer.transports.lifeline import Hold, Lifeline
from pagewire.kvtransfer.transports.polling import until
from pagewire.kvtransfer.transports.worker import Worker
from pagewire.kvtransfer.wire import Ready

NAME = "cuda_ipc"
# A copy on a device is some microseconds a message; the window bounds what a chunk waits for, not memory.
FLOW = Flow(window_bytes=256 << 20, message_bytes=32 << 20)
_CARD = struct.Struct(f"<4s{HANDLE_BYTES}sQQ16sI")  # magic, pool, its offset there, blocks, lifeline, events behind
_MAGIC = b"PWD1"
_NO_EVENT = NUM_EVENTS  # a tag: nothing was recorded, what is there is there
TIMEOUT_S = 10.0


def carrier(timeout_s: float = TIMEOUT_S, shm_dir: str = "") -> Carrier:
    """Return the carrier of a pod; a source's device may take `timeout_s` seconds to write what was announced.

    Takers and sources have to be on one host, and there in one network namespace, or have the directory `shm_dir`.
    """
    return Carrier(
        name=NAME,
        outlet=lambda memory, _: CudaIpcOutlet(_on_device(memory), shm_dir),
        inlet=lambda memory, _: CudaIpcInlet(_on_device(memory), timeout_s, shm_dir),
        flow=FLOW,
    )


class CudaIpcOutlet:
    """The source's end; see `Outlet`. It exports, and says which event to wait for."""

    line = None
    announces = True
    lends = True
    checksums = False

    def __init__(self, pool: DevicePool, shm_dir: str = "") -> None:
        self._pool = pool
        self._shm_dir = shm_dir
        self._worker = Worker("cuda-ipc-source")
        self._lifeline: Lifeline | None = None

    async def open(self, card: bytes) -> bytes:
        """Export the pool; see `Outlet`."""
        export, events = await self._worker.run(self._export)
        self._lifeline = lifeline = Lifeline(self._shm_dir)
        head = _CARD.pack(_MAGIC, export.handle, export.offset, self._pool.num_blocks, lifeline.name, len(events))
        return head + b"".join(events)

    def tag(self, batch: Batch) -> int:
        """Return the event that was recorded last: blocks are handed on after they were recorded; see `Outlet`."""
        return self._pool.last_write if self._pool.has_writes else _NO_EVENT

    async def carry(self, batch: Batch) -> None:
        """The taker copies; see `Outlet`."""

    def close(self) -> None:
        """Break the lifeline; see `Outlet`."""
        if self._lifeline is not None:
            self._lifeline.close()
        self._worker.close()

    def _export(self) -> tuple[Export, list[bytes]]:
        return self._pool.export(), [_handle(event) for event in self._pool.events]


class CudaIpcInlet:
    """The taker's end; see `Inlet`."""

    line = None
    card = b""
    place_bytes = FLOW.message_bytes
    max_places = 1

    def __init__(self, pool: DevicePool, timeout_s: float = TIMEOUT_S, shm_dir: str = "") -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._shm_dir = shm_dir
        self._worker = Worker("cuda-ipc-taker")
        self._given_up = threading.Event()
        self._hold: Hold | None = None
        self._source_blocks = 0
        self._driver: CudaDriver | None = None
        self._mapped: int | None = None  # where the source's allocation begins here
        self._offset = 0
        self._events: list[torch.cuda.Event] = []

    async def open(self, card: bytes) -> None:
        """Map the source's pool; see `Inlet`."""
        if len(card) < _CARD.size:
            raise TransferFailed(f"a card of {len(card)} bytes")
        magic, handle, self._offset, self._source_blocks, name, num_events = _CARD.unpack_from(card)
        is_known = magic == _MAGIC and num_events in (0, NUM_EVENTS)  # none of a pool that a front has mapped
        if not is_known or len(card) != _CARD.size + num_events * HANDLE_BYTES:
            raise TransferFailed("not the card of a CUDA source")
        self._hold = Hold(name, self._shm_dir)
        events = [card[at : at + HANDLE_BYTES] for at in range(_CARD.size, len(card), HANDLE_BYTES)]
        await self._worker.run(self._map, handle, events)

    async def arrived(self, ready: Ready) -> None:
        """Nothing is on its way; see `Inlet`."""

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy the blocks; see `Inlet`."""
        if not (0 <= ready.tag < len(self._events) or ready.tag == _NO_EVENT):
            raise ContractBroken(f"event {ready.tag} of {len(self._events)}")
        copies = spans(ready, moves, self._pool, self._source_blocks)
        await self._worker.finish(self._given_up.set, self._copy, ready.tag, copies)
        if self._hold is None or not self._hold.is_held:
            raise StreamLost("the source has let go of its blocks")
        return ()

    def done(self, ready: Ready) -> None:
        """Nothing is staged; see `Inlet`."""

    def close(self) -> None:
        """Unmap, after the copy that runs; see `Inlet`."""
        self._given_up.set()
        if self._hold is not None:
            self._hold.close()
        self._worker.close(self._unmap)

    def _map(self, handle: bytes, events: list[bytes]) -> None:
        driver = CudaDriver(self._pool.device_index)
        driver.use()
        self._mapped = driver.map(handle)
        self._driver = driver
        end = self._offset + self._source_blocks * self._pool.block_bytes
        if end > driver.size(self._mapped):  # what lies behind it on this device is others'
            raise TransferFailed(f"a pool that ends at {end} of {driver.size(self._mapped)} bytes")
        try:
            device = torch.device("cuda", self._pool.device_index)
            self._events = [_event(device, handle) for handle in events]
        except RuntimeError as error:
            raise TransferFailed(f"the source's events cannot be opened: {error}") from None

    def _copy(self, event: int, spans: Sequence[Span]) -> None:
        if self._driver is None or self._mapped is None:
            raise StreamLost("the stream is not open")
        stream = self._pool.copies
        source, target = self._mapped + self._offset, self._pool.address
        try:
            self._wait_for(event)
            try:
                for span in spans:
                    self._driver.copy(target + span.destination, source + span.source, span.length, stream.cuda_stream)
            finally:
                ended = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                ended.record(stream)
                ended.synchronize()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise StreamLost(f"a copy between devices failed: {error}") from None

    def _wait_for(self, event: int) -> None:
        """Return when what was announced behind that event of the source's is written."""
        if event == _NO_EVENT:
            return
        if not until(self._events[event].query, self._timeout_s, self._given_up):
            if self._given_up.is_set():
                raise StreamLost("the stream is closed")
            raise TransferTimeout(f"the source's device did not write its blocks within {self._timeout_s} s")

    def _unmap(self) -> None:
        self._events = []
        if self._driver is not None and self._mapped is not None:
            self._driver.unmap(self._mapped)
            self._mapped = None


def _handle(event: torch.cuda.Event) -> bytes:
    return bytes(event.ipc_handle())  # type: ignore[no-untyped-call]


def _event(device: torch.device, handle: bytes) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event.from_ipc_handle(device, handle)  # type: ignore[no-untyped-call]
    return event


def _on_device(memory: BlockMemory) -> DevicePool:
    if not isinstance(memory, DevicePool):
        raise TransferFailed("this pool is not on a CUDA device")
    return memory
