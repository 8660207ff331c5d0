"""Where a taker's messages go: to the sink of their key, kept for later, or dropped; and what credit that frees.

A message is worked on in its turn: `claim` asks the sink about some of its blocks at once, `settle` tells it what came
of those that it claimed. A message's bytes are credited once, when the last of its blocks is disposed of. What is kept
is bounded by the window whatever the source does; by two, since a message that came twice is none of its faults. Knows
nothing of streams, clocks and memory. Invariants: a sink is asked only about a key that is registered now; every claim
is settled exactly once; every accepted byte is credited once, or forgotten with the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pagewire.core.errors import ContractBroken
from pagewire.kvtransfer.effects import Verdict
from pagewire.kvtransfer.transport import ShipmentKey, Sink, TransferCounters
from pagewire.kvtransfer.wire import Credit, Ready, Sums


@dataclass(slots=True, eq=False)
class Parcel:
    """A message, and how many of its blocks are not disposed of. `checksums` is None while they have not come."""

    ready: Ready
    num_open: int
    checksums: tuple[int, ...] | None


class Claimed(NamedTuple):
    """Blocks of one message that their sink claimed: until they are settled they may be written."""

    parcel: Parcel
    positions: Sequence[int]
    block_ids: Sequence[int]
    sink: Sink


@dataclass(slots=True)
class Work:
    """Blocks of one message whose turn has come, by position."""

    parcel: Parcel
    positions: Sequence[int]


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
        self._unsummed: list[Parcel] = []  # whose checksums follow; few, and none that is over
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

        A message is no larger than the window, but for a single block that is; it has to come alone.
        """
        num_bytes = len(ready) * self._block_bytes
        if len(ready) > 1 and num_bytes > self._window_bytes:
            raise ContractBroken(f"{len(ready)} blocks at once in a window of {self._window_bytes} bytes")
        if self._kept_bytes and self._kept_bytes + num_bytes > 2 * self._window_bytes:
            raise ContractBroken(f"{self._kept_bytes + num_bytes} bytes in flight in a window of {self._window_bytes}")
        self._kept_bytes += num_bytes
        self._counters.messages += 1
        self._counters.blocks += len(ready)
        self._counters.bytes += num_bytes
        parcel = Parcel(ready, len(ready), None if ready.sums_follow else ready.checksums)
        if parcel.checksums is None:
            self._unsummed.append(parcel)
        self._work.append(Work(parcel, range(len(ready))))

    def summed(self, sums: Sums) -> None:
        """The checksums of an earlier message came; of one that is over, they are nothing."""
        for parcel in self._unsummed:
            if (parcel.ready.key, parcel.ready.indices) == (sums.key, sums.indices):
                parcel.checksums = sums.checksums
        self._unsummed = [parcel for parcel in self._unsummed if parcel.checksums is None]

    def claim(self, max_blocks: int) -> Claimed | None:
        """Return the next blocks to place, `max_blocks` at most and all of one message; None when there is nothing."""
        while self._work:
            work = self._work[0]
            positions, work.positions = work.positions[:max_blocks], work.positions[max_blocks:]
            if not work.positions:
                self._work.popleft()
            if claimed := self._claim(work.parcel, positions):
                return claimed
        return None

    def settle(self, claimed: Claimed, spoilt: Sequence[int] = ()) -> None:
        """Nothing writes those blocks any more; what is in them is right, except at the positions `spoilt`."""
        ready, positions = claimed.parcel.ready, claimed.positions
        if spoilt:
            positions = [position for position in positions if position not in spoilt]
            self._counters.corrupt += len(spoilt)
        self._counters.placed_bytes += len(positions) * self._block_bytes
        for those, is_intact in ((positions, True), (spoilt, False)):
            if those:
                claimed.sink.settle(*ready.key, ready.indices_at(those), is_intact)
        self._dispose(claimed.parcel, len(claimed.positions))

    def give_up(self, claimed: Claimed) -> None:
        """Nothing writes those blocks any more, and their stream is lost: neither counted nor credited."""
        ready = claimed.parcel.ready
        claimed.sink.settle(*ready.key, ready.indices_at(claimed.positions), False)

    def clear(self) -> tuple[ShipmentKey, ...]:
        """Forget everything with the stream, without credit; returns the keys that were registered."""
        keys = tuple(self._sinks)
        self._sinks.clear()
        self._work.clear()
        self._unsummed.clear()
        self._waiting.clear()
        self._kept_bytes = 0
        return keys

    def _claim(self, parcel: Parcel, positions: Sequence[int]) -> Claimed | None:
        ready = parcel.ready
        sink = self._sinks.get(ready.key)
        if sink is None:
            self._counters.dropped += len(positions)
            self._dispose(parcel, len(positions))
            return None
        verdicts, block_ids = zip(*sink.claim(*ready.key, ready.indices_at(positions)), strict=True)
        if verdicts.count(Verdict.PLACE) == len(positions):  # as nearly always
            return Claimed(parcel, positions, block_ids, sink)
        by_verdict: dict[Verdict, list[int]] = {}
        for position, verdict in zip(positions, verdicts, strict=True):
            by_verdict.setdefault(verdict, []).append(position)
        placed, waiting = by_verdict.pop(Verdict.PLACE, []), by_verdict.pop(Verdict.WAIT, [])
        if waiting:
            self._waiting.setdefault(ready.key, []).append(Work(parcel, waiting))
        for verdict, others in by_verdict.items():
            self._count(verdict, len(others))
        self._dispose(parcel, len(positions) - len(placed) - len(waiting))
        ids = [block_id for verdict, block_id in zip(verdicts, block_ids, strict=True) if verdict is Verdict.PLACE]
        return Claimed(parcel, placed, ids, sink) if placed else None

    def _count(self, verdict: Verdict, num_blocks: int) -> None:
        if verdict is Verdict.LATE:
            self._counters.late += num_blocks
        elif verdict is Verdict.DUPLICATE:
            self._counters.duplicate += num_blocks
        else:
            self._counters.dropped += num_blocks

    def _dispose(self, parcel: Parcel, num_blocks: int) -> None:
        parcel.num_open -= num_blocks
        if not parcel.num_open:
            if parcel.checksums is None:
                self._unsummed.remove(parcel)
            num_bytes = len(parcel.ready) * self._block_bytes
            self._kept_bytes -= num_bytes
            self._on_disposed(parcel.ready)
            self._on_credit(Credit(parcel.ready.key, num_bytes))
