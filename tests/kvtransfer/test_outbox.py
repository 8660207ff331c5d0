"""Whose turn it is at the source and what waits at the taker: nothing lost, nothing twice, bounds kept."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagewire.kvtransfer.effects import Claim, Verdict
from pagewire.kvtransfer.inbox import Claimed, Inbox
from pagewire.kvtransfer.outbox import MAX_FENCED_KEYS, Batch, Outbox
from pagewire.kvtransfer.transport import Flow, ShipmentKey, TransferCounters
from pagewire.kvtransfer.wire import Credit, Ready

BYTES = 10
FLOW = Flow(window_bytes=80, message_bytes=20)
A, B, C = ShipmentKey(1, 1), ShipmentKey(2, 1), ShipmentKey(3, 1)
KEYS = st.sampled_from([A, B, C])


def drain(outbox: Outbox) -> list[Batch]:
    return list(iter(outbox.take, None))


def test_shipments_take_turns_message_by_message() -> None:
    outbox = Outbox(BYTES, FLOW)
    outbox.add(A, [(index, 100 + index) for index in range(4)])
    outbox.add(B, [(1, 201), (0, 200)])
    assert drain(outbox) == [
        Batch(A, 0, (100, 101)),
        Batch(B, 1, (201,)),
        Batch(A, 2, (102, 103)),
        Batch(B, 0, (200,)),
    ]


def test_a_message_has_indices_that_are_equally_far_apart() -> None:
    outbox = Outbox(BYTES, Flow(window_bytes=200, message_bytes=40))
    outbox.add(A, [(index, 100 + index) for index in (2, 5, 8, 9, 10, 14)])
    batches = drain(outbox)
    assert batches == [Batch(A, 2, (102, 105, 108), 3), Batch(A, 9, (109, 110)), Batch(A, 14, (114,))]
    assert [list(batch.indices) for batch in batches] == [[2, 5, 8], [9, 10], [14]]


def test_one_shipment_has_half_of_the_window() -> None:
    outbox = Outbox(BYTES, FLOW)
    outbox.add(A, [(index, index) for index in range(20)])
    assert len(drain(outbox)) == 2
    outbox.add(B, [(index, index) for index in range(20)])
    assert [batch.key for batch in drain(outbox)] == [B, B]
    assert outbox.in_flight_bytes == 80
    outbox.credit(Credit(A, 20))
    assert [batch.key for batch in drain(outbox)] == [A]


def test_while_a_window_is_full_nothing_of_a_backlog_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = Outbox(BYTES, Flow(window_bytes=80, message_bytes=40))
    for number in range(100):
        outbox.add(ShipmentKey(number, 1), [(index, index) for index in range(20)])
    assert len(drain(outbox)) == 2
    looked_at: list[int] = []
    run = outbox._run

    def counted(queue: deque[tuple[int, int]], most: int) -> list[tuple[int, int]]:
        found = run(queue, most)
        looked_at.append(len(found))
        return found

    monkeypatch.setattr(outbox, "_run", counted)
    assert outbox.take() is None
    assert looked_at == []
    outbox.credit(Credit(ShipmentKey(0, 1), 10))
    assert outbox.take() is None
    assert max(looked_at) == 2, "one block more than there is credit for"


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
    # Who is purged again is the newest again.
    outbox.purge(ShipmentKey(1, 1))
    outbox.purge(ShipmentKey(MAX_FENCED_KEYS + 1, 1))
    assert outbox.is_fenced(ShipmentKey(1, 1))
    assert not outbox.is_fenced(ShipmentKey(2, 1))


def test_a_block_that_was_queued_twice_and_one_behind_go_in_messages_of_their_own() -> None:
    outbox = Outbox(BYTES, Flow(window_bytes=200, message_bytes=40))
    outbox.add(A, [(3, 103), (3, 103), (1, 101), (6, 106)])
    assert drain(outbox) == [Batch(A, 3, (103,)), Batch(A, 3, (103,)), Batch(A, 1, (101, 106), 5)]


def test_what_is_queued_and_in_flight_is_told_by_key() -> None:
    outbox = Outbox(BYTES, FLOW)
    outbox.add(A, [(0, 0), (1, 1), (2, 2)])
    outbox.add(B, [(0, 0)])
    outbox.add(C, [])
    assert (outbox.queued(), outbox.num_queued, outbox.keys()) == ({A: 3, B: 1}, 4, (A, B))
    outbox.take()
    assert (outbox.in_flight(A), outbox.in_flight(B), outbox.in_flight_bytes) == (20, 0, 20)
    assert (outbox.purge(A), outbox.purge(A), outbox.purge(C)) == (1, 0, 0)
    assert (outbox.queued(), outbox.keys()) == ({B: 1}, (B, A))
    outbox.credit(Credit(A, 15))
    assert (outbox.in_flight(A), outbox.in_flight_bytes) == (5, 5)
    outbox.credit(Credit(A, 5))
    assert outbox.keys() == (B,)


def test_a_block_larger_than_a_message_travels_in_one_of_its_own() -> None:
    outbox = Outbox(50, Flow(window_bytes=110, message_bytes=40))
    outbox.add(A, [(0, 0), (1, 1)])
    outbox.add(B, [(0, 0)])
    assert drain(outbox) == [Batch(A, 0, (0,)), Batch(B, 0, (0,))]
    outbox.credit(Credit(B, 50))
    assert drain(outbox) == [], "a second of one shipment is more than its half"


def test_a_message_larger_than_a_half_travels_alone() -> None:
    outbox = Outbox(41, Flow(window_bytes=80, message_bytes=40))
    outbox.add(A, [(0, 0)])
    outbox.add(B, [(0, 0)])
    assert drain(outbox) == [Batch(A, 0, (0,))]
    outbox.credit(Credit(A, 40))
    assert drain(outbox) == [], "one byte is still in flight"
    outbox.credit(Credit(A, 1))
    assert drain(outbox) == [Batch(B, 0, (0,))]


def test_a_first_message_may_take_all_of_a_half() -> None:
    outbox = Outbox(BYTES, Flow(window_bytes=80, message_bytes=40))
    outbox.add(A, [(0, 0)])
    outbox.add(B, [(index, index) for index in range(5)])
    assert drain(outbox) == [Batch(A, 0, (0,)), Batch(B, 0, (0, 1, 2, 3))]


class StreamLife(RuleBasedStateMachine):
    """An outbox and an inbox over a lossless stream, with sinks that bind when they like."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(BYTES, FLOW)
        self.counters = TransferCounters()
        half = FLOW.window_bytes // 2  # two of which it takes: not more than a source may send
        self.inbox = Inbox(BYTES, half, self.counters, self.outbox.credit)
        self.stream: list[Ready] = []
        self.open: Claimed | None = None
        self.bound: set[ShipmentKey] = set()
        self.gone: set[ShipmentKey] = set()
        self.added: Counter[ShipmentKey] = Counter()
        self.num_claimed: Counter[ShipmentKey] = Counter()
        self.placed: dict[ShipmentKey, list[int]] = {key: [] for key in (A, B, C)}
        for key in (A, B, C):
            self.inbox.register(key, self)

    def claim(self, shipment_id: int, generation: int, indices: Sequence[int]) -> Sequence[Claim]:
        key = ShipmentKey(shipment_id, generation)
        assert key not in self.gone, "asked after it was unregistered"
        if key not in self.bound:
            return [Claim(Verdict.WAIT)] * len(indices)
        self.num_claimed[key] += len(indices)
        return [Claim(Verdict.PLACE, index) for index in indices]

    def settle(self, shipment_id: int, generation: int, indices: Sequence[int], is_intact: bool) -> None:
        key = ShipmentKey(shipment_id, generation)
        self.num_claimed[key] -= len(indices)
        assert self.num_claimed[key] >= 0, "settled twice"
        if key not in self.gone:
            self.placed[key].extend(indices)

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
            self.stream.append(Ready(batch.key, batch.first_block, (), batch.block_ids, stride=batch.stride))

    @rule()
    def receive(self) -> None:
        if self.stream:
            self.inbox.accept(self.stream.pop(0))

    @rule(num=st.integers(1, 3))
    def begin_placing(self, num: int) -> None:
        if self.open is None:
            self.open = self.inbox.claim(num)

    @rule()
    def end_placing(self) -> None:
        if self.open is not None:
            self.inbox.settle(self.open)
            self.open = None

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
            self.end_placing()
            self.begin_placing(3)
        assert sum(self.num_claimed.values()) == 0
        assert self.outbox.in_flight_bytes == self.inbox.num_waiting == self.outbox.num_queued == 0
        for key in (A, B, C):
            if key not in self.gone and not self.outbox.is_fenced(key):
                assert len(self.placed[key]) == self.added[key]


TestStreamLife = StreamLife.TestCase
