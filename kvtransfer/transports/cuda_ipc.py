"""Blocks between CUDA devices of one host: the taker maps the source's pool once and copies block to block.

    source  exports its pool and its events; a message's tag is the event that its blocks were written before
    taker   once that event has happened, has the copy stream copy; sees that end by an event of its own

Several messages are under way at a time, so that a copy is posted while the one before it runs. What has happened by
then, as it mostly has, is seen by a look: only what has not is waited for by a thread, within a deadline. The end of a
copy is looked for by the loop itself, between turns of others: no thread has to be woken for it.

Messages go over a Unix socket. No byte of a block passes a CPU and no checksum is told. That what was copied was still
the source's to lend is seen afterwards, by its lifeline: it breaks before the source lets its blocks go. A copy cannot
be called back: so it is posted only when what it depends on, which is another process's to do, has happened, and then
ends by itself.

Knows cards and blocks; CUDA is `CudaDriver`'s and torch's. Invariant: the source's pool stays mapped until our last
copy has ended.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Sequence

import torch

from pagewire.core.cuda_driver import CudaDriver
from pagewire.core.cuda_export import Export
from pagewire.core.errors import ContractBroken, StreamLost, TransferFailed, TransferTimeout
from pagewire.core.token_door import TOKEN_BYTES
from pagewire.kvtransfer.carrier import Carrier, Line, Move, spans
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.plan import PartSpan, Span, part_spans
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.transports.cuda_card import NUM_EVENTS, CudaCard
from pagewire.kvtransfer.transports.descriptor_post import DescriptorPost, fetch_descriptor
from pagewire.kvtransfer.transports.device_pool import DevicePool
from pagewire.kvtransfer.transports.lifeline import Hold, Lifeline
from pagewire.kvtransfer.transports.line import SocketLine
from pagewire.kvtransfer.transports.polling import until
from pagewire.kvtransfer.transports.worker import Worker
from pagewire.kvtransfer.wire import Ready

NAME = "cuda_ipc"
# Nothing is staged, so the window bounds what a chunk waits for, some milliseconds, not memory. What a message costs by
# itself hides beneath the copy of the one before, which takes 0.1 ms on a device with 2 TB/s.
FLOW = Flow(window_bytes=8 << 30, message_bytes=256 << 20)
MAX_PLACES = 4
LOOK_S = 0.002  # of looking for a copy's end in each turn of the loop; then once in `PAUSE_S`
PAUSE_S = 0.0005
MAX_SPANS = 16  # that the loop posts itself; each takes some microseconds
_NO_EVENT = NUM_EVENTS  # a tag: nothing was recorded, what is there is there
TIMEOUT_S = 10.0


def carrier(timeout_s: float = TIMEOUT_S, shm_dir: str = "") -> Carrier:
    """Return the carrier of a pod; a source's device may take `timeout_s` seconds to write what was announced.

    Takers and sources have to be on one host, and there in one network namespace, or have the directory `shm_dir`.
    """
    return Carrier(
        name=NAME,
        outlet=lambda memory, _: CudaIpcOutlet(_on_device(memory), shm_dir),
        inlet=lambda memory, _: CudaIpcInlet(_on_device(memory), timeout_s),
        flow=FLOW,
    )


class CudaIpcOutlet:
    """The source's end; see `Outlet`. It exports, and says which event to wait for."""

    announces = True
    lends = True
    checksums = False

    def __init__(self, pool: DevicePool, shm_dir: str = "") -> None:
        self._pool = pool
        self._shm_dir = shm_dir
        self._worker = Worker("cuda-ipc-source")
        self._lifeline: Lifeline | None = None
        self._post: DescriptorPost | None = None

    @property
    def line(self) -> Line | None:
        """To the one that fetched the lifeline; see `Outlet`."""
        return self._post.line if self._post is not None else None

    async def open(self, card: bytes) -> bytes:
        """Export the pool, and listen for the one that holds our card; see `Outlet`."""
        exports, events = await self._worker.run(self._export)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._lifeline = Lifeline()
        try:
            self._post = post = DescriptorPost(self._shm_dir, self._lifeline.fd, token)
        except OSError as error:
            raise TransferFailed(f"no socket in {self._shm_dir or 'this network namespace'}: {error}") from error
        told = CudaCard(
            num_blocks=self._pool.num_blocks, token=token, parts=tuple(exports), events=tuple(events),
            address=post.address,
        )  # fmt: skip
        return told.to_bytes()

    def tag(self, batch: Batch) -> int:
        """Return the event that was recorded last: blocks are handed on after they were recorded; see `Outlet`."""
        return self._pool.last_write if self._pool.has_writes else _NO_EVENT

    async def carry(self, batch: Batch) -> None:
        """The taker copies; see `Outlet`."""

    def close(self) -> None:
        """Break the lifeline and hang up; see `Outlet`."""
        if self._post is not None:
            self._post.close()
        if self._lifeline is not None:
            self._lifeline.close()
        self._worker.close()

    def _export(self) -> tuple[Sequence[Export], list[bytes]]:
        if not self._pool.events:
            return self._pool.export(), []
        with torch.cuda.device(self._pool.devices[0]):  # an event is of the device on which its handle is asked for
            return self._pool.export(), [_handle(event) for event in self._pool.events]


class CudaIpcInlet:
    """The taker's end; see `Inlet`."""

    card = b""
    place_bytes = FLOW.message_bytes
    max_places = MAX_PLACES
    needs_checksums = False

    def __init__(self, pool: DevicePool, timeout_s: float = TIMEOUT_S) -> None:
        self.line = SocketLine()
        self._pool = pool
        self._timeout_s = timeout_s
        self._worker = Worker("cuda-ipc-taker")
        self._given_up = threading.Event()
        self._looking = asyncio.Lock()
        self._hold: Hold | None = None
        self._num_blocks = 0  # of the source
        self._num_parts = 0
        self._drivers: dict[int, CudaDriver] = {}  # of our devices
        self._mapped: list[tuple[CudaDriver, int]] = []  # where the source's allocations begin here
        self._sources: dict[tuple[int, int], int] = {}  # where its block 0 lies, by its part and our device
        self._events: list[torch.cuda.Event] = []

    async def open(self, card: bytes) -> None:
        """Fetch the lifeline and map the source's pool; see `Inlet`."""
        told = CudaCard.from_bytes(card)
        size, num_parts = self._pool.block_bytes, len(told.parts)
        if size % num_parts:
            raise TransferFailed(f"blocks of {size} bytes do not lie in {num_parts} equal parts")
        try:
            self._hold = Hold(await fetch_descriptor(told.address, told.token, self.line))
        except OSError as error:
            raise TransferFailed(f"the source cannot be reached on this host: {error}") from error
        await self._worker.run(self._map, told)
        self._num_blocks, self._num_parts = told.num_blocks, num_parts

    async def arrived(self, ready: Ready) -> None:
        """Nothing is on its way; see `Inlet`."""
        await asyncio.sleep(0)  # what came before it is posted now: several may be read without a turn between

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy the blocks; see `Inlet`."""
        if self._hold is None or self._given_up.is_set():
            raise StreamLost("the stream is not open")
        if not (0 <= ready.tag < len(self._events) or ready.tag == _NO_EVENT):
            raise ContractBroken(f"event {ready.tag} of {len(self._events)}")
        whole = spans(ready, moves, self._pool, self._num_blocks)
        num_copies = len(whole) * max(self._num_parts, len(self._pool.parts))
        copied = [torch.cuda.Event() for _ in self._pool.streams]  # type: ignore[no-untyped-call]
        try:
            if num_copies <= MAX_SPANS and self._is_written(ready.tag):
                self._post(whole, copied)
            else:
                await self._worker.finish(self._given_up.set, self._post_behind, ready.tag, whole, copied)
        finally:
            await self._ended(copied)
        if not self._hold.is_held:
            raise StreamLost("the source has let go of its blocks")
        return ()

    def done(self, ready: Ready) -> None:
        """Nothing is staged; see `Inlet`."""

    def close(self) -> None:
        """Hang up, and unmap after the copies that run; see `Inlet`."""
        self._given_up.set()
        self.line.close()
        if self._hold is not None:
            self._hold.close()
        self._worker.close(self._unmap)

    def _map(self, card: CudaCard) -> None:
        """Map each part of the source for those of our devices that take something of it."""
        self._drivers = {index: CudaDriver(index) for index in self._pool.streams}
        size, num_parts = self._pool.block_bytes, len(card.parts)
        num_bytes = card.num_blocks * size // num_parts
        block = part_spans([Span(0, 0, size)], size, num_parts, len(self._pool.parts))
        for part, index in sorted({(each.source_part, self._pool.devices[each.destination_part]) for each in block}):
            driver, export = self._drivers[index], card.parts[part]
            driver.use()
            base = driver.map(export.handle)
            self._mapped.append((driver, base))
            if export.offset + num_bytes > driver.size(base):  # what lies behind it on this device is others'
                raise TransferFailed(f"a pool that ends at {export.offset + num_bytes} of {driver.size(base)} bytes")
            self._sources[part, index] = base + export.offset
        try:
            device = torch.device("cuda", self._pool.devices[0])
            self._events = [_event(device, handle) for handle in card.events]
        except RuntimeError as error:
            raise TransferFailed(f"the source's events cannot be opened: {error}") from None

    def _is_written(self, event: int) -> bool:
        """Return whether what was announced behind that event of the source's is written."""
        return event == _NO_EVENT or _has_happened(self._events[event])

    def _post_behind(self, event: int, whole: Sequence[Span], copied: Sequence[torch.cuda.Event]) -> None:
        """Post once that event has happened; for a thread."""
        if not until(lambda: self._is_written(event), self._timeout_s, self._given_up):
            if self._given_up.is_set():
                raise StreamLost("the stream is closed")
            raise TransferTimeout(f"the source's device did not write its blocks within {self._timeout_s} s")
        self._post(whole, copied)

    def _post(self, whole: Sequence[Span], copied: Sequence[torch.cuda.Event]) -> None:
        """Have our devices copy; an event of each happens when it has, whatever of it could be posted."""
        if not self._mapped or self._given_up.is_set():
            raise StreamLost("the stream is not open")
        copies = part_spans(whole, self._pool.block_bytes, self._num_parts, len(self._pool.parts))
        try:
            for (index, stream), event in zip(self._pool.streams.items(), copied, strict=True):
                self._drivers[index].use()
                try:
                    for each in copies:
                        if self._pool.devices[each.destination_part] == index:
                            self._copy(each, index, stream.cuda_stream)
                finally:
                    event.record(stream)
        except RuntimeError as error:
            raise StreamLost(f"a copy between devices failed: {error}") from None

    def _copy(self, span: PartSpan, index: int, stream: int) -> None:
        driver, part = self._drivers[index], self._pool.parts[span.destination_part]
        source, destination = self._sources[span.source_part, index] + span.source, part.data_ptr() + span.destination
        if span.rows == 1:
            driver.copy(destination, source, span.length, stream)
        else:
            pitches = (part.shape[1], self._pool.block_bytes // self._num_parts)
            driver.copy_rows(destination, source, span.length, pitches, span.rows, stream)

    async def _ended(self, copied: Sequence[torch.cuda.Event]) -> None:
        """Return when all have happened, or nothing was recorded: not sooner when cancelled or where one of our devices
        has failed, no copy is called back.
        """
        failed: BaseException | None = None
        for event in copied:
            while True:
                try:
                    if _has_happened(event):
                        break
                    async with self._looking:  # one at a time: copies end in the order in which they were posted
                        await _happened(event)
                except asyncio.CancelledError as error:
                    failed = error
                except StreamLost as error:  # of this device; others go on
                    failed = failed or error
                    break
        if failed is not None:
            raise failed

    def _unmap(self) -> None:
        self._events = []
        try:
            for stream in self._pool.streams.values() if self._mapped else ():
                stream.synchronize()  # what was posted, it all goes over these
        finally:
            while self._mapped:
                driver, base = self._mapped.pop()
                driver.use()
                driver.unmap(base)


async def _happened(event: torch.cuda.Event) -> None:
    """Return when it has."""
    looks_until_s = time.monotonic() + LOOK_S
    while not _has_happened(event):  # noqa: ASYNC110  # it is a device's, which sets none of ours
        await asyncio.sleep(0 if time.monotonic() < looks_until_s else PAUSE_S)


def _has_happened(event: torch.cuda.Event) -> bool:
    """Raises StreamLost where the device has failed."""
    try:
        return bool(event.query())  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise StreamLost(f"the device has failed: {error}") from None


def _handle(event: torch.cuda.Event) -> bytes:
    return bytes(event.ipc_handle())  # type: ignore[no-untyped-call]


def _event(device: torch.device, handle: bytes) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event.from_ipc_handle(device, handle)  # type: ignore[no-untyped-call]
    return event


def _on_device(memory: BlockMemory) -> DevicePool:
    if not isinstance(memory, DevicePool):
        raise TransferFailed("this pool is not on a CUDA device")
    return memory
