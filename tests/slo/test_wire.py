"""The simulated stream: moments by hand, and messages that are one event against the same ones by themselves."""

from __future__ import annotations

import random

import pytest

from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.slo.cost_model import LinkLaw
from pagewire.slo.simulation.agenda import Agenda
from pagewire.slo.simulation.wire import Wire

BLOCK = 1000


class Far:
    """The end of a stream: which block of which shipment arrived when."""

    def __init__(self, law: LinkLaw, *, is_fast: bool) -> None:
        self.agenda = Agenda()
        self.wire = Wire(self.agenda, law, BLOCK, self._take, is_fast=is_fast)
        self.arrived: list[tuple[float, int, int]] = []

    def _take(self, key: ShipmentKey, indices: range, at_s: float) -> None:
        self.arrived += [(at_s, key.shipment_id, index) for index in indices]

    def send(self, at_s: float, shipment: int, first: int, count: int) -> None:
        blocks = [(first + number, 7) for number in range(count)]
        self.agenda.at(at_s, self.wire.send, ShipmentKey(shipment, 1), blocks)

    def run(self) -> None:
        while self.agenda.step():
            pass
        assert self.wire.is_idle


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
    ends = [Far(law, is_fast=is_fast) for is_fast in (True, False)]
    at_s, sent = 0.0, [0] * 4
    for _ in range(40):
        at_s += chance.expovariate(0.5)
        shipment, count = chance.randrange(4), chance.randint(1, 9)
        for far in ends:
            far.send(at_s, shipment, sent[shipment], count)
        sent[shipment] += count
    for far in ends:
        far.run()
    assert ends[0].arrived == ends[1].arrived == sorted(ends[0].arrived, key=lambda each: each[0])
    for shipment, count in enumerate(sent):
        assert [index for _, which, index in ends[0].arrived if which == shipment] == list(range(count))


@pytest.mark.parametrize("is_fast", [True, False])
def test_what_had_arrived_of_a_purged_shipment_before_anybody_looked_is_there_all_the_same(is_fast: bool) -> None:
    far = Far(LinkLaw(latency_s=10.0, bytes_per_s=BLOCK, window_bytes=4 * BLOCK, message_bytes=BLOCK), is_fast=is_fast)
    far.send(0.0, 1, 0, 3)  # two blocks fit half the window, and are there at 11 and 12; the first is credited at 21
    far.agenda.at(15.0, far.wire.purge, ShipmentKey(1, 1))
    while far.agenda.step():
        pass
    assert far.arrived == [(11.0, 1, 0), (12.0, 1, 1)]
    assert far.wire.is_idle
