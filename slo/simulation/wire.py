"""The bulk stream from a prefill pod to a decode pod, in virtual time: the product's queue, window and turns.

A message takes its turn on the stream, travels for its bytes' time and `latency_s`, is verified at once, and is
credited a latency later. Bytes begin to move when the frame that announces them has arrived, as with transports that
read. What a credit lets go goes at the credit's moment, whenever that is looked at: with `is_fast` no sooner than all
that is queued of a shipment may have arrived, as nothing can come of it before; without it each message, and each
credit that something waits for, is looked at when it comes. With it, too, a chunk that finds the stream idle is sent by
arithmetic (`lone_chunk`), and once more through the queue if something comes before its last credit. Invariant:
messages arrive in the order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from pagewire.kvtransfer.outbox import Batch, Outbox
from pagewire.kvtransfer.transport import Flow, ShipmentKey
from pagewire.kvtransfer.wire import Credit
from pagewire.slo.costs.cost_model import LinkLaw
from pagewire.slo.simulation.agenda import Agenda
from pagewire.slo.simulation.lone_chunk import messages


class Deliver(Protocol):
    """Whoever a stream leads to."""

    def __call__(self, key: ShipmentKey, indices: range, at_s: float) -> None:
        """Take a message with these blocks of a shipment, which arrived at `at_s`: that may be over."""
        ...


@dataclass(slots=True)
class _Lone:
    """A chunk that was sent by arithmetic at `at_s`."""

    key: ShipmentKey
    blocks: list[tuple[int, int]]
    at_s: float
    messages: list[tuple[float, int]]
    last_s: float  # when the last of them arrives
    has_arrived: bool = False


class Wire:
    """One stream; `deliver` takes each message."""

    def __init__(self, agenda: Agenda, law: LinkLaw, block_bytes: int, deliver: Deliver, *, is_fast: bool) -> None:
        self._agenda = agenda
        self._law = law
        self._block_bytes = block_bytes
        self._outbox = Outbox(block_bytes, Flow(window_bytes=law.window_bytes, message_bytes=law.message_bytes))
        self._message_s = max(block_bytes, law.message_bytes) / law.bytes_per_s  # of the largest
        self._deliver = deliver
        self._is_fast = is_fast
        self._free_s = 0.0  # when what was sent through the queue so far is off the stream
        self._on_way: deque[tuple[float, Batch]] = deque()  # by the moments of their arrival, like the next two
        self._last_s: dict[ShipmentKey, float] = {}  # of each shipment that has something on its way
        self._credits: deque[tuple[float, Credit]] = deque()
        self._lone: _Lone | None = None  # until its last credit: the queue knows nothing of it
        self._looks_at_s = -1.0  # the moment on the agenda that counts

    @property
    def is_idle(self) -> bool:
        """True when nothing is queued or on its way."""
        is_lone_on_way = self._lone is not None and not self._lone.has_arrived
        return not (self._on_way or self._outbox.num_queued or is_lone_on_way)

    def send(self, key: ShipmentKey, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, block id) pairs of a shipment."""
        self._queue_lone()
        self._take_credits()
        now_s, is_run = self._agenda.now(), blocks[-1][0] - blocks[0][0] == len(blocks) - 1
        if self._is_fast and is_run and not (self._credits or self._on_way):
            found = messages(len(blocks), self._block_bytes, self._law, now_s, self._free_s)
            last_s = found[-1][0] + self._law.latency_s
            self._lone = _Lone(key, blocks, now_s, found, last_s)
        else:
            self._outbox.add(key, blocks)
            self._pump(now_s)
        self._await_next()

    def purge(self, key: ShipmentKey) -> None:
        """Forget what is queued of a shipment."""
        self._queue_lone()
        self._take_credits()
        self._outbox.purge(key)
        self._await_next()

    def _queue_lone(self) -> None:
        """Something comes: unless the stream is idle again, what was sent by arithmetic is sent through the queue."""
        lone, self._lone = self._lone, None
        if lone is None or (lone.has_arrived and lone.last_s + self._law.latency_s <= self._agenda.now()):
            return
        self._outbox.add(lone.key, lone.blocks)
        self._pump(lone.at_s)
        self._take_credits()
        if lone.has_arrived:
            self._on_way.clear()
            self._last_s.clear()

    def _take_credits(self) -> None:
        """Catch up with what came to be sent up to now."""
        now_s, credits = self._agenda.now(), self._credits
        while credits and credits[0][0] <= now_s:
            at_s, credit = credits.popleft()
            self._outbox.credit(credit)
            self._pump(at_s)

    def _pump(self, at_s: float) -> None:
        """Send what may go since `at_s`."""
        law = self._law
        while (batch := self._outbox.take()) is not None:
            num_bytes = len(batch.block_ids) * self._block_bytes
            self._free_s = max(self._free_s, at_s) + num_bytes / law.bytes_per_s
            arrives_s = self._last_s[batch.key] = self._free_s + law.latency_s
            self._on_way.append((arrives_s, batch))
            self._credits.append((arrives_s + law.latency_s, Credit(batch.key, num_bytes)))

    def _await_next(self) -> None:
        """Look again when something may come of what is queued and on its way."""
        if self._lone is not None or self._on_way or self._outbox.num_queued:
            # A shipment may have been purged where all that was sent before it had arrived, and nobody had looked.
            looks_at_s = max(self._agenda.now(), self._next_shipment_s() if self._is_fast else self._next_message_s())
            if looks_at_s != self._looks_at_s:
                self._looks_at_s = looks_at_s
                self._agenda.at(looks_at_s, self._look, looks_at_s)

    def _next_message_s(self) -> float:
        moments = [self._on_way[0][0]] if self._on_way else []
        return min([*moments, self._credits[0][0]]) if self._outbox.num_queued else moments[0]

    def _next_shipment_s(self) -> float:
        """Return a moment before which no shipment has all that is queued of it at the other end."""
        if self._lone is not None:
            return self._lone.last_s
        queued = self._outbox.queued()
        moments = [last_s for key, last_s in self._last_s.items() if key not in queued]
        if queued:
            # The next message waits for a credit, and all of a shipment but its last one are on the stream before that.
            before_last_s = min(queued.values()) * self._block_bytes / self._law.bytes_per_s - self._message_s
            moments.append(max(self._credits[0][0], self._free_s + max(0.0, before_last_s)))
        return min(moments)

    def _look(self, at_s: float) -> None:
        if at_s != self._looks_at_s:
            return  # something was sent meanwhile
        self._looks_at_s = -1.0
        if self._lone is not None:
            self._arrive(self._lone)
            return
        self._take_credits()
        arrived = []
        while self._on_way and self._on_way[0][0] <= at_s:
            arrived.append(self._on_way.popleft())
        self._last_s = {key: last_s for key, last_s in self._last_s.items() if last_s > at_s}
        self._await_next()
        for arrived_s, batch in arrived:
            self._deliver(batch.key, batch.indices, arrived_s)

    def _arrive(self, lone: _Lone) -> None:
        lone.has_arrived = True
        first = lone.blocks[0][0]
        for off_s, count in lone.messages:
            self._deliver(lone.key, range(first, first + count), off_s + self._law.latency_s)
            first += count
