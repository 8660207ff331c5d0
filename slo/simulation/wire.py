"""The bulk stream from a prefill pod to a decode pod, in virtual time: the product's queue, window and turns.

A message takes its turn on the stream, travels for its bytes' time and `latency_s`, is verified at once, and is
credited a latency later. Bytes begin to move when the frame that announces them has arrived, as with transports that
read. What a credit lets go goes at the credit's moment, but is only looked at when something happens here: it could not
arrive before what is on its way. With `is_fast` messages of one shipment that left together are one event, the last
one's: nothing can come of a shipment before its last message. Invariant: messages arrive in the order in which they
were sent.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from pagewire.kvtransfer.outbox import Batch, Outbox
from pagewire.kvtransfer.transport import Flow, ShipmentKey
from pagewire.kvtransfer.wire import Credit
from pagewire.slo.cost_model import LinkLaw
from pagewire.slo.simulation.agenda import Agenda


class Deliver(Protocol):
    """Whoever a stream leads to."""

    def __call__(self, batch: Batch, at_s: float) -> None:
        """Take a message that arrived at `at_s`, which may be over."""
        ...


class Wire:
    """One stream; `deliver` takes each message."""

    def __init__(self, agenda: Agenda, law: LinkLaw, block_bytes: int, deliver: Deliver, *, is_fast: bool) -> None:
        self._agenda = agenda
        self._law = law
        self._block_bytes = block_bytes
        self._outbox = Outbox(block_bytes, Flow(window_bytes=law.window_bytes, message_bytes=law.message_bytes))
        self._deliver = deliver
        self._is_fast = is_fast
        self._free_s = 0.0  # when what was sent so far is off the stream
        self._leaving: list[tuple[Batch, float]] = []  # sent just now, with the moments of their arrival
        self._num_on_way = 0  # events to come
        self._awaits_credit = False  # nothing is on its way, and the next credit is looked at when it comes
        self._credits: deque[tuple[float, Credit]] = deque()  # to come, the soonest first
        self.num_bytes = 0

    @property
    def is_idle(self) -> bool:
        """True when nothing is queued or on its way."""
        return not self._num_on_way and not self._outbox.num_queued

    def send(self, key: ShipmentKey, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, block id) pairs of a shipment."""
        self._take_credits()
        self._outbox.add(key, blocks)
        self._pump(self._agenda.now())
        self._leave()

    def purge(self, key: ShipmentKey) -> None:
        """Forget what is queued of a shipment."""
        self._take_credits()
        self._outbox.purge(key)
        self._leave()

    def _take_credits(self) -> None:
        now_s = self._agenda.now()
        while self._credits and self._credits[0][0] <= now_s:
            at_s, credit = self._credits.popleft()
            self._outbox.credit(credit)
            self._pump(at_s)

    def _pump(self, at_s: float) -> None:
        """Send what may go since `at_s`."""
        while (batch := self._outbox.take()) is not None:
            num_bytes = len(batch.block_ids) * self._block_bytes
            self.num_bytes += num_bytes
            self._free_s = max(self._free_s, at_s) + num_bytes / self._law.bytes_per_s
            arrives_s = self._free_s + self._law.latency_s
            self._leaving.append((batch, arrives_s))
            self._credits.append((arrives_s + self._law.latency_s, Credit(batch.key, num_bytes)))

    def _leave(self) -> None:
        """Have what was sent arrive."""
        leaving, self._leaving = self._leaving, []
        together: list[tuple[Batch, float]] = []
        for message in leaving:
            if together and not (self._is_fast and together[-1][0].key == message[0].key):
                self._on_way(together)
                together = []
            together.append(message)
        if together:
            self._on_way(together)
        if not self._num_on_way and self._outbox.num_queued and not self._awaits_credit:
            self._awaits_credit = True
            self._agenda.at(self._credits[0][0], self._go_on)

    def _on_way(self, together: list[tuple[Batch, float]]) -> None:
        self._num_on_way += 1
        self._agenda.at(together[-1][1], self._arrive, together)

    def _arrive(self, together: list[tuple[Batch, float]]) -> None:
        self._num_on_way -= 1
        self._take_credits()
        self._leave()
        for batch, at_s in together:
            self._deliver(batch, at_s)

    def _go_on(self) -> None:
        self._awaits_credit = False
        self._take_credits()
        self._leave()
