"""The simulated stream: moments by hand, and messages that are one event against the same ones by themselves."""

from __future__ import annotations

import random

import pytest

from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.slo.costs.cost_model import LinkLaw
from pagewire.slo.simulation.agenda import Agenda
from pagewire.slo.simulation.wire import Wire

BLOCK = 1000


class Far:
    """The end of a stream: which block of which shipment arrived when, and when that was looked at."""

    def __init__(self, law: LinkLaw, *, is_fast: bool) -> None:
        self.agenda = Agenda()
        self.wire = Wire(self.agenda, law, BLOCK, self._take, is_fast=is_fast)
        self.arrived: list[tuple[float, int, int]] = []
        self.seen_s: dict[tuple[int, int], float] = {}
        self.num_events = 0
        self._num_sent = 0
        self._has_purged = False

    def _take(self, key: ShipmentKey, indices: range, at_s: float) -> None:
        self.arrived += [(at_s, key.shipment_id, index) for index in indices]
        self.seen_s |= {(key.shipment_id, index): self.agenda.now() for index in indices}

    def send(self, at_s: float, shipment: int, first: int, count: int) -> None:
        self.send_these(at_s, shipment, [*range(first, first + count)])

    def send_these(self, at_s: float, shipment: int, indices: list[int]) -> None:
        def send() -> None:
            self._num_sent += len(indices)
            self.wire.send(ShipmentKey(shipment, 1), [(index, 7 + 3 * index) for index in indices])

        self.agenda.at(at_s, send)

    def purge(self, at_s: float, shipment: int) -> None:
        self._has_purged = True
        self.agenda.at(at_s, self.wire.purge, ShipmentKey(shipment, 1))

    def run(self) -> None:
        while self.agenda.step():
            self.num_events += 1
            assert self._has_purged or self.wire.is_idle == (self._num_sent == len(self.arrived))
        assert self.wire.is_idle

    def last_seen(self) -> dict[int, float]:
        """Return when the last block of each shipment was looked at."""
        return {shipment: seen_s for (shipment, _), seen_s in sorted(self.seen_s.items())}

    def last_arrived(self) -> dict[int, float]:
        """Return when it arrived."""
        return {shipment: at_s for at_s, shipment, _ in sorted(self.arrived, key=lambda each: each[1:])}


def both(law: LinkLaw) -> list[Far]:
    """Return an end that looks at all that is queued of a shipment at once, and one that looks at each message."""
    return [Far(law, is_fast=is_fast) for is_fast in (True, False)]


def hold(ends: list[Far]) -> None:
    """See that both ends saw the same, each in its time: nothing of a shipment is done before its last message."""
    fast, plain = ends
    assert fast.arrived == plain.arrived == sorted(fast.arrived, key=lambda each: each[0])
    assert fast.last_seen() == fast.last_arrived()
    assert plain.seen_s == {(shipment, index): at_s for at_s, shipment, index in plain.arrived}
    assert fast.num_events <= plain.num_events


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_credit_that_is_not_enough_is_followed_by_the_next(is_fast: bool) -> None:
    # Half the window is two blocks, as a message is: behind two of one block each, one of two waits for both credits.
    law = LinkLaw(latency_s=10.0, bytes_per_s=BLOCK, window_bytes=4 * BLOCK, message_bytes=2 * BLOCK)
    far = Far(law, is_fast=is_fast)
    far.send(0.0, 1, 0, 1)
    far.send(0.5, 1, 1, 1)
    far.send(0.6, 1, 2, 4)
    far.run()
    # The first is off the stream at 1 and there at 11, the second at 12: credits come at 21 and 22, and at 44.
    assert far.arrived == [(11, 1, 0), (12, 1, 1), (34, 1, 2), (34, 1, 3), (56, 1, 4), (56, 1, 5)]


@pytest.mark.parametrize("seed", range(20))
def test_messages_that_are_one_event_arrive_when_they_would_by_themselves(seed: int) -> None:
    chance = random.Random(seed)
    law = LinkLaw(
        latency_s=chance.choice([0.0, 0.3, 5.0]),
        bytes_per_s=BLOCK * chance.choice([1.0, 20.0]),
        window_bytes=BLOCK * chance.choice([6, 9, 40]),
        message_bytes=BLOCK * chance.choice([1, 2, 3]),
    )
    ends = both(law)
    at_s, sent = 0.0, [0] * 4
    for _ in range(40):
        at_s += chance.expovariate(0.5)
        shipment, count = chance.randrange(4), chance.randint(1, 9)
        for far in ends:
            far.send(at_s, shipment, sent[shipment], count)
        sent[shipment] += count
    for far in ends:
        far.run()
    hold(ends)
    for shipment, count in enumerate(sent):
        assert [index for _, which, index in ends[0].arrived if which == shipment] == list(range(count))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_purged_or_has_gaps_or_comes_while_nothing_else_does_arrives_as_it_would_message_by_message(
    seed: int,
) -> None:
    chance = random.Random(seed)
    law = LinkLaw(
        latency_s=chance.choice([0, 1, 4]),
        bytes_per_s=BLOCK * chance.choice([1, 2]),
        window_bytes=BLOCK * chance.choice([4, 6, 9]),
        message_bytes=BLOCK * chance.choice([1, 2]),
    )
    ends, at_s, sent = both(law), 0, [0] * 3
    for _ in range(30):
        at_s += chance.choice([0, 1, 2, 5, 12, 30])
        shipment, count = chance.randrange(3), chance.randint(1, 8)
        indices = [sent[shipment] + number * chance.choice([1, 1, 1, 2]) for number in range(count)]
        indices = sorted({*indices})
        sent[shipment] = indices[-1] + 1
        has_gone, purged_s = chance.random() < 0.3, at_s + chance.choice([0, 0.5, 1, 3])
        for far in ends:
            far.send_these(at_s, shipment, indices)
            if has_gone:
                far.purge(purged_s, shipment)
    for far in ends:
        far.run()
    fast, plain = ends
    assert fast.arrived == plain.arrived


@pytest.mark.parametrize("is_fast", [True, False])
def test_what_is_queued_of_a_purged_shipment_never_arrives_and_lets_the_others_go(is_fast: bool) -> None:
    far = Far(LinkLaw(latency_s=2.0, bytes_per_s=BLOCK, window_bytes=4 * BLOCK, message_bytes=BLOCK), is_fast=is_fast)
    far.send(0.0, 1, 0, 5)
    far.send(0.5, 2, 0, 1)
    far.purge(0.7, 1)
    far.run()
    # A shipment may have half the window on its way, which are two blocks: its third would go at 5, with a credit.
    assert far.arrived == [(3.0, 1, 0), (4.0, 1, 1), (5.0, 2, 0)]


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize(("second_s", "moments"), [(0.5, [0.5, 1.0]), (0.25, [0.5, 1.0]), (1.0, [0.5, 1.5])])
def test_one_that_comes_just_as_another_has_arrived_or_before_arrives_behind_it(
    is_fast: bool, second_s: float, moments: list[float]
) -> None:
    far = Far(LinkLaw(bytes_per_s=2 * BLOCK, window_bytes=8 * BLOCK, message_bytes=BLOCK), is_fast=is_fast)
    far.send(0.0, 1, 0, 1)
    far.send(second_s, 2, 0, 1)
    far.run()
    assert [at_s for at_s, _, _ in far.arrived] == moments
    alone = Far(LinkLaw(bytes_per_s=BLOCK, window_bytes=8 * BLOCK, message_bytes=BLOCK), is_fast=is_fast)
    alone.send(0.0, 1, 0, 1)
    alone.run()
    assert alone.arrived == [(1.0, 1, 0)]


def test_credits_of_a_chunk_that_had_the_stream_to_itself_bind_who_comes_before_them() -> None:
    law = LinkLaw(latency_s=10.0, bytes_per_s=BLOCK, window_bytes=4 * BLOCK, message_bytes=BLOCK)
    for second_s, first_arrives_s in (
        (1.0, 32.0), (15.0, 32.0), (21.0, 32.0), (21.5, 32.5), (22.0, 33.0), (30.0, 41.0),
    ):  # fmt: skip
        ends = both(law)
        for far in ends:
            far.send(0.0, 1, 0, 2)  # off the stream at 1 and 2, there at 11 and 12, credited at 21 and 22
            far.send(second_s, 1, 2, 3)
            far.run()
            assert far.arrived[2] == (first_arrives_s, 1, 2)
        hold(ends)


@pytest.mark.parametrize("first", [0, 5])
def test_a_chunk_alone_is_one_event_however_many_messages_it_has(first: int) -> None:
    ends = both(LinkLaw(latency_s=1.0, bytes_per_s=BLOCK, window_bytes=4 * BLOCK, message_bytes=BLOCK))
    for far in ends:
        far.send(0.0, 1, first, 8)
        far.send(100.0, 1, first + 8, 8)
        far.run()
    hold(ends)
    fast, plain = ends
    assert fast.num_events == 2 + 2 < 2 + 16 <= plain.num_events


def test_who_comes_before_the_credits_of_a_chunk_that_was_alone_is_waited_for_and_nothing_else() -> None:
    ends = both(LinkLaw(latency_s=10.0, bytes_per_s=BLOCK, window_bytes=4 * BLOCK, message_bytes=BLOCK))
    for far in ends:
        far.send(0.0, 1, 0, 2)  # there at 11 and 12
        far.send(15.0, 2, 0, 2)
        far.run()
    hold(ends)
    assert ends[0].num_events == 2 + 2


def test_what_a_purge_leaves_is_looked_at_when_the_last_of_it_is_there() -> None:
    far = Far(LinkLaw(latency_s=2.0, bytes_per_s=BLOCK, window_bytes=4 * BLOCK, message_bytes=BLOCK), is_fast=True)
    far.send(0.0, 1, 0, 8)
    far.purge(0.7, 1)
    far.run()
    assert far.arrived == [(3.0, 1, 0), (4.0, 1, 1)]
    assert far.seen_s[1, 1] == 4.0


@pytest.mark.parametrize("blocks_per_message", [1, 2, 3])
@pytest.mark.parametrize("latency_s", [0.0, 0.5])
def test_chunks_that_share_the_stream_are_looked_at_seldom_and_none_too_late(
    blocks_per_message: int, latency_s: float
) -> None:
    message = blocks_per_message * BLOCK
    ends = both(LinkLaw(latency_s=latency_s, bytes_per_s=BLOCK, window_bytes=6 * message, message_bytes=message))
    for far in ends:
        far.send(0.0, 1, 0, 40)
        far.send(0.0, 2, 0, 60)
        far.send(0.0, 3, 0, 20)
        far.run()
    hold(ends)
    assert ends[0].num_events < 20 < 40 <= ends[1].num_events


@pytest.mark.parametrize("is_fast", [True, False])
def test_blocks_with_gaps_between_them_keep_their_indices(is_fast: bool) -> None:
    far = Far(LinkLaw(bytes_per_s=BLOCK, window_bytes=40 * BLOCK, message_bytes=4 * BLOCK), is_fast=is_fast)
    far.send_these(0.0, 1, [0, 1, 3, 4])
    far.run()
    assert [index for _, _, index in far.arrived] == [0, 1, 3, 4]
    assert far.arrived[-1][0] == 4.0


@pytest.mark.parametrize("is_fast", [True, False])
def test_what_had_arrived_of_a_purged_shipment_before_anybody_looked_is_there_all_the_same(is_fast: bool) -> None:
    far = Far(LinkLaw(latency_s=10.0, bytes_per_s=BLOCK, window_bytes=4 * BLOCK, message_bytes=BLOCK), is_fast=is_fast)
    far.send(0.0, 1, 0, 3)  # two blocks fit half the window, and are there at 11 and 12; the first is credited at 21
    far.agenda.at(15.0, far.wire.purge, ShipmentKey(1, 1))
    while far.agenda.step():
        pass
    assert far.arrived == [(11.0, 1, 0), (12.0, 1, 1)]
    assert far.wire.is_idle
