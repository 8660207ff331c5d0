"""Where a taker's messages go: to the sink of their key, kept for later, or dropped; and what credit that frees.

A message is worked on in its turn: `claims` asks the sink block by block, `settle` tells it what came of each that it
claimed. A message's bytes are credited once, when the last of its blocks is disposed of. What is kept is bounded by the
window whatever the source does; by two, since a message that came twice is none of its faults. Knows nothing of
streams, clocks and memory. Invariants: a sink is asked only about a key that is registered now; every claim is settled
exactly once; every accepted byte is credited once, or forgotten with the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pagewire.core.errors import ContractBroken
from pagewire.kvtransfer.effects import Verdict
from pagewire.kvtransfer.transport import ShipmentKey, Sink, TransferCounters
from pagewire.kvtransfer.wire import Credit, Ready, Sums


@dataclass(slots=True)
class Parcel:
    """A message, and how many of its blocks are not disposed of. `checksums` is None while they have not come."""

    ready: Ready
    num_open: int
    checksums: tuple[int, ...] | None


class Claimed(NamedTuple):
    """A block that its sink claimed: until it is settled it may be written."""

    parcel: Parcel
    position: int
    block_index: int  # in the chain
    block_id: int
    sink: Sink


@dataclass(slots=True)
class Work:
    """Blocks of one message whose turn has come, by position."""

    parcel: Parcel
    positions: deque[int]


class Inbox:
    """The registrations of one stream, and the blocks that wait. `on_disposed` hears of each message that is over."""

    def __init__(
        self,
        block_bytes: int,
        window_bytes: int,
        counters: TransferCounters,
        on_credit: Callable[[Credit], None],
        on_disposed: Callable[[Ready], None] = lambda ready: None,
    ) -> None:
        self._block_bytes = block_bytes
        self._window_bytes = window_bytes
        self._kept_bytes = 0  # accepted and not credited
        self._counters = counters
        self._on_credit = on_credit
        self._on_disposed = on_disposed
        self._sinks: dict[ShipmentKey, Sink] = {}
        self._work: deque[Work] = deque()
        self._unsummed: list[Parcel] = []  # whose checksums follow; one is left, or two where a message came twice
        self._waiting: dict[ShipmentKey, list[Work]] = {}

    def keys(self) -> tuple[ShipmentKey, ...]:
        """Return what is registered."""
        return tuple(self._sinks)

    @property
    def num_waiting(self) -> int:
        """How many blocks wait for their ids."""
        return sum(len(work.positions) for waiting in self._waiting.values() for work in waiting)

    def register(self, key: ShipmentKey, sink: Sink) -> None:
        """Take blocks of `key`. Raises ValueError when it is taken."""
        if key in self._sinks:
            raise ValueError(f"{key} is registered")
        self._sinks[key] = sink

    def unregister(self, key: ShipmentKey) -> None:
        """Drop what waits and what comes; what is claimed is settled as if nothing had happened."""
        self._sinks.pop(key, None)
        for work in self._waiting.pop(key, ()):
            self._counters.dropped += len(work.positions)
            self._dispose(work.parcel, len(work.positions))

    def retry(self, key: ShipmentKey) -> None:
        """What waits has its turn at once: what came behind it stays behind it."""
        self._work.extendleft(reversed(self._waiting.pop(key, ())))

    def accept(self, ready: Ready) -> None:
        """A message came: its turn comes behind the others. Raises ContractBroken on one beyond two windows.

        One that is larger by itself has to come alone.
        """
        num_bytes = len(ready) * self._block_bytes
        if self._kept_bytes and self._kept_bytes + num_bytes > 2 * self._window_bytes:
            raise ContractBroken(f"{self._kept_bytes + num_bytes} bytes in flight in a window of {self._window_bytes}")
        self._kept_bytes += num_bytes
        self._counters.messages += 1
        self._counters.blocks += len(ready)
        self._counters.bytes += num_bytes
        parcel = Parcel(ready, len(ready), None if ready.sums_follow else ready.checksums)
        if parcel.checksums is None:
            self._unsummed.append(parcel)
        self._work.append(Work(parcel, deque(range(len(ready)))))

    def summed(self, sums: Sums) -> None:
        """The checksums of an earlier message came; of one that is over, they are nothing."""
        for parcel in self._unsummed:
            if (parcel.ready.key, parcel.ready.indices) == (sums.key, sums.indices):
                parcel.checksums = sums.checksums
        self._unsummed = [parcel for parcel in self._unsummed if parcel.checksums is None and parcel.num_open]

    def claims(self, max_blocks: int) -> list[Claimed]:
        """Return the next blocks to place, `max_blocks` at most and all of one message; empty when there is nothing."""
        while self._work:
            work = self._work[0]
            claimed: list[Claimed] = []
            while work.positions and len(claimed) < max_blocks:
                if block := self._claim(work.parcel, work.positions.popleft()):
                    claimed.append(block)
            if not work.positions:
                self._work.popleft()
            if claimed:
                return claimed
        return []

    def settle(self, block: Claimed, is_intact: bool) -> None:
        """Nothing writes that block any more."""
        if not is_intact:
            self._counters.corrupt += 1
        block.sink.settle(*block.parcel.ready.key, block.block_index, is_intact)
        self._dispose(block.parcel, 1)

    def give_up(self, block: Claimed) -> None:
        """Nothing writes that block any more, and its stream is lost: neither counted nor credited."""
        block.sink.settle(*block.parcel.ready.key, block.block_index, False)

    def clear(self) -> tuple[ShipmentKey, ...]:
        """Forget everything with the stream, without credit; returns the keys that were registered."""
        keys = tuple(self._sinks)
        self._sinks.clear()
        self._work.clear()
        self._unsummed.clear()
        self._waiting.clear()
        self._kept_bytes = 0
        return keys

    def _claim(self, parcel: Parcel, position: int) -> Claimed | None:
        key = parcel.ready.key
        sink = self._sinks.get(key)
        verdict = Verdict.DROP
        if sink is not None:
            index = parcel.ready.index(position)
            verdict, block_id = sink.claim(*key, index)
            if verdict is Verdict.PLACE:
                return Claimed(parcel, position, index, block_id, sink)
            if verdict is Verdict.WAIT:
                self._wait(key, parcel, position)
                return None
        self._count(verdict)
        self._dispose(parcel, 1)
        return None

    def _wait(self, key: ShipmentKey, parcel: Parcel, position: int) -> None:
        waiting = self._waiting.setdefault(key, [])
        if not waiting or waiting[-1].parcel is not parcel:
            waiting.append(Work(parcel, deque()))
        waiting[-1].positions.append(position)

    def _count(self, verdict: Verdict) -> None:
        if verdict is Verdict.LATE:
            self._counters.late += 1
        elif verdict is Verdict.DUPLICATE:
            self._counters.duplicate += 1
        else:
            self._counters.dropped += 1

    def _dispose(self, parcel: Parcel, num_blocks: int) -> None:
        parcel.num_open -= num_blocks
        if not parcel.num_open:
            num_bytes = len(parcel.ready) * self._block_bytes
            self._kept_bytes -= num_bytes
            self._on_disposed(parcel.ready)
            self._on_credit(Credit(parcel.ready.key, num_bytes))
