"""Whose turn it is at the sender and what waits at the receiver: nothing lost, nothing twice, bounds kept."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagewire.kvtransfer.effects import Verdict
from pagewire.kvtransfer.inbox import Inbox
from pagewire.kvtransfer.outbox import MAX_FENCED_KEYS, Batch, Outbox
from pagewire.kvtransfer.transport import Flow, ShipmentKey, TransferCounters
from pagewire.kvtransfer.wire import Blocks, Credit, checksum

BYTES = 10
FLOW = Flow(window_bytes=80, message_bytes=20)
A, B, C = ShipmentKey(1, 1), ShipmentKey(2, 1), ShipmentKey(3, 1)
KEYS = st.sampled_from([A, B, C])


def drain(outbox: Outbox) -> list[Batch]:
    return list(iter(outbox.take, None))


def test_shipments_take_turns_message_by_message() -> None:
    outbox = Outbox(BYTES, FLOW)
    outbox.add(A, [(index, 100 + index) for index in range(4)])
    outbox.add(B, [(0, 200), (2, 202)])
    assert drain(outbox) == [
        Batch(A, 0, (100, 101)),
        Batch(B, 0, (200,)),
        Batch(A, 2, (102, 103)),
        Batch(B, 2, (202,)),
    ]


def test_one_shipment_has_half_of_the_window() -> None:
    outbox = Outbox(BYTES, FLOW)
    outbox.add(A, [(index, index) for index in range(20)])
    assert len(drain(outbox)) == 2
    outbox.add(B, [(index, index) for index in range(20)])
    assert [batch.key for batch in drain(outbox)] == [B, B]
    assert outbox.in_flight_bytes == 80
    outbox.credit(Credit(A, 20))
    assert [batch.key for batch in drain(outbox)] == [A]


def test_credit_that_was_never_owed_counts_for_nothing() -> None:
    outbox = Outbox(BYTES, FLOW)
    outbox.add(A, [(0, 0)])
    drain(outbox)
    outbox.credit(Credit(A, 2**64 - 1))
    outbox.credit(Credit(B, 5))
    assert outbox.in_flight_bytes == 0
    assert outbox.keys() == ()


def test_fenced_keys_are_remembered_within_a_bound() -> None:
    outbox = Outbox(BYTES, FLOW)
    for shipment_id in range(MAX_FENCED_KEYS + 1):
        outbox.purge(ShipmentKey(shipment_id, 1))
    assert not outbox.is_fenced(ShipmentKey(0, 1))
    assert outbox.is_fenced(ShipmentKey(1, 1))
    assert outbox.is_fenced(ShipmentKey(MAX_FENCED_KEYS, 1))


class StreamLife(RuleBasedStateMachine):
    """An outbox and an inbox over a lossless stream, with sinks that bind when they like."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(BYTES, FLOW)
        self.counters = TransferCounters()
        self.inbox = Inbox(self.counters, self.outbox.credit)
        self.stream: list[Blocks] = []
        self.bound: set[ShipmentKey] = set()
        self.gone: set[ShipmentKey] = set()
        self.added: Counter[ShipmentKey] = Counter()
        self.placed: dict[ShipmentKey, list[int]] = {key: [] for key in (A, B, C)}
        for key in (A, B, C):
            self.inbox.register(key, self)

    def deliver(
        self, shipment_id: int, generation: int, block_index: int, data: memoryview, is_intact: bool
    ) -> Verdict:
        key = ShipmentKey(shipment_id, generation)
        assert key not in self.gone, "delivered after it was unregistered"
        assert is_intact
        if key not in self.bound:
            return Verdict.WAIT
        self.placed[key].append(block_index)
        return Verdict.PLACE

    @rule(key=KEYS, num=st.integers(1, 8))
    def add(self, key: ShipmentKey, num: int) -> None:
        if not self.outbox.is_fenced(key):
            start = self.added[key]
            self.outbox.add(key, [(index, index) for index in range(start, start + num)])
            self.added[key] += num

    @rule()
    def send(self) -> None:
        batch = self.outbox.take()
        if batch is not None:
            payloads = tuple(memoryview(bytes([block_id % 256]) * BYTES) for block_id in batch.block_ids)
            sums = tuple(checksum(batch.key, index, data) for index, data in enumerate(payloads, batch.first_block))
            self.stream.append(Blocks(batch.key, batch.first_block, sums, payloads))

    @rule()
    def receive(self) -> None:
        if self.stream:
            self.inbox.accept(self.stream.pop(0))

    @rule(key=KEYS)
    def bind(self, key: ShipmentKey) -> None:
        self.bound.add(key)
        self.inbox.retry(key)

    @rule(key=KEYS)
    def unregister(self, key: ShipmentKey) -> None:
        self.gone.add(key)
        self.inbox.unregister(key)

    @rule(key=KEYS)
    def fence(self, key: ShipmentKey) -> None:
        self.outbox.purge(key)

    @invariant()
    def bounded(self) -> None:
        assert 0 <= self.outbox.in_flight_bytes <= FLOW.window_bytes
        assert self.inbox.num_waiting * BYTES <= self.outbox.in_flight_bytes

    @invariant()
    def in_order_and_once(self) -> None:
        for key, placed in self.placed.items():
            assert placed == list(range(len(placed))), key

    def teardown(self) -> None:
        """Once every shipment is bound or gone, everything flows and no byte is owed."""
        for key in (A, B, C):
            self.bind(key)
        for _ in range(1000):
            self.send()
            self.receive()
        assert self.outbox.in_flight_bytes == self.inbox.num_waiting == self.outbox.num_queued == 0
        for key in (A, B, C):
            if key not in self.gone and not self.outbox.is_fenced(key):
                assert len(self.placed[key]) == self.added[key]


TestStreamLife = StreamLife.TestCase
