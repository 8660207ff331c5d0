"""Where a receiver's messages go: to the sink of their key, kept for later, or dropped; and what credit that frees.

A message's bytes are credited once, when the last of its blocks is disposed of, so what is kept is bounded by the
sender's window. Knows nothing of streams and clocks. Invariants: a sink hears only of a key that is registered now;
every accepted byte is credited exactly once, or forgotten with the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagewire.kvtransfer.effects import Verdict
from pagewire.kvtransfer.transport import ShipmentKey, Sink, TransferCounters
from pagewire.kvtransfer.wire import Blocks, Credit


@dataclass(slots=True)
class _Parcel:
    """A message of which some blocks are not disposed of."""

    key: ShipmentKey
    num_bytes: int
    num_open: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A block whose id is not bound; it was intact."""

    index: int
    data: memoryview
    parcel: _Parcel


class Inbox:
    """The registrations of one stream and the blocks that wait. `on_credit` is called when bytes were disposed of."""

    def __init__(self, counters: TransferCounters, on_credit: Callable[[Credit], None]) -> None:
        self._counters = counters
        self._on_credit = on_credit
        self._sinks: dict[ShipmentKey, Sink] = {}
        self._waiting: dict[ShipmentKey, list[_Waiting]] = {}

    def keys(self) -> tuple[ShipmentKey, ...]:
        """Return what is registered."""
        return tuple(self._sinks)

    @property
    def num_waiting(self) -> int:
        """How many blocks wait for their ids."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def register(self, key: ShipmentKey, sink: Sink) -> None:
        """Take blocks of `key`. Raises ValueError when it is taken."""
        if key in self._sinks:
            raise ValueError(f"{key} is registered")
        self._sinks[key] = sink

    def unregister(self, key: ShipmentKey) -> None:
        """Drop what waits and what comes."""
        self._sinks.pop(key, None)
        self.drop_waiting(key)

    def drop_waiting(self, key: ShipmentKey) -> None:
        """Drop what waits; its key stays registered."""
        for waiting in self._waiting.pop(key, ()):
            self._counters.dropped += 1
            self._dispose(waiting.parcel)

    def retry(self, key: ShipmentKey) -> None:
        """Offer what waits again."""
        for waiting in self._waiting.pop(key, ()):
            self._offer(waiting.index, waiting.data, True, waiting.parcel)

    def accept(self, message: Blocks) -> None:
        """Hand a message's blocks out."""
        num_bytes = sum(payload.nbytes for payload in message.payloads)
        self._counters.messages += 1
        self._counters.blocks += len(message.payloads)
        self._counters.bytes += num_bytes
        parcel = _Parcel(message.key, num_bytes, len(message.payloads))
        for position, data in enumerate(message.payloads):
            # The checksum of a block that nobody wants is not worth the time.
            is_intact = message.key in self._sinks and message.is_intact(position)
            self._offer(message.first_block + position, data, is_intact, parcel)

    def clear(self) -> tuple[ShipmentKey, ...]:
        """Forget everything with the stream, without credit; returns the keys that were registered."""
        keys = tuple(self._sinks)
        self._sinks.clear()
        self._waiting.clear()
        return keys

    def _offer(self, index: int, data: memoryview, is_intact: bool, parcel: _Parcel) -> None:
        sink = self._sinks.get(parcel.key)
        verdict = Verdict.DROP
        if sink is not None:
            verdict = sink.deliver(*parcel.key, index, data, is_intact)
        if verdict is Verdict.WAIT and parcel.key in self._sinks:
            self._waiting.setdefault(parcel.key, []).append(_Waiting(index, data, parcel))
            return
        self._count(verdict)
        self._dispose(parcel)

    def _count(self, verdict: Verdict) -> None:
        if verdict is Verdict.LATE:
            self._counters.late += 1
        elif verdict is Verdict.DUPLICATE:
            self._counters.duplicate += 1
        elif verdict is Verdict.CORRUPT:
            self._counters.corrupt += 1
        elif verdict is not Verdict.PLACE:
            self._counters.dropped += 1

    def _dispose(self, parcel: _Parcel) -> None:
        parcel.num_open -= 1
        if not parcel.num_open:
            self._on_credit(Credit(parcel.key, parcel.num_bytes))
