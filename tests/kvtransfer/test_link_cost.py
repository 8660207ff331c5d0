"""What is learned of a link."""

from __future__ import annotations

import pytest

from pagewire.kvtransfer.link_cost import MIN_BYTES, LinkCost, LinkMeter


def test_priors_stand_until_something_is_measured() -> None:
    meter = LinkMeter()
    assert meter.cost == LinkCost()
    meter.answered(0.5)
    assert meter.cost == LinkCost(rtt_s=0.5)
    meter.landed(1 << 20, 1.0)
    assert meter.cost == LinkCost(rtt_s=0.5, s_per_byte=1 / (1 << 20))


def test_it_follows_what_changes() -> None:
    meter = LinkMeter()
    for _ in range(50):
        meter.landed(10**6, 1e-3)
    for _ in range(50):
        meter.landed(10**6, 2e-3)
    assert meter.cost.seconds(10**6) == pytest.approx(LinkCost().rtt_s + 2e-3, rel=1e-3)


def test_small_shipments_and_no_time_teach_nothing() -> None:
    meter = LinkMeter()
    meter.landed(MIN_BYTES - 1, 1.0)
    meter.landed(1 << 30, 0.0)
    meter.answered(0.0)
    assert meter.cost == LinkCost()


def test_each_observation_counts_a_fifth_against_those_before() -> None:
    meter = LinkMeter()
    for seconds in (1.0, 2.0, 0.2):  # 1, then 0.8 + 0.4, then 0.96 + 0.04
        meter.answered(seconds)
    assert meter.cost.rtt_s == pytest.approx(1.0)
    for num_bytes, seconds in ((1 << 20, 1.0), (1 << 21, 1.0)):  # 1 s per MiB, then half of that
        meter.landed(num_bytes, seconds)
    assert meter.cost.s_per_byte * (1 << 20) == pytest.approx(0.8 * 1.0 + 0.2 * 0.5)


def test_it_is_measured_once_a_shipment_was_large_enough() -> None:
    meter = LinkMeter()
    meter.answered(0.5)
    meter.landed(MIN_BYTES - 1, 1.0)
    assert not meter.is_measured
    meter.landed(MIN_BYTES, 1.0)
    assert meter.is_measured
    assert meter.cost.s_per_byte == 1.0 / MIN_BYTES


def test_a_few_kilobytes_say_nothing_of_the_rate() -> None:
    meter = LinkMeter()
    meter.landed(4096, 1.0)
    assert meter.cost == LinkCost()


def test_a_link_that_nobody_measured_is_thought_worth_trying() -> None:
    assert LinkCost().seconds(0) < 0.01
    assert LinkCost().seconds(1 << 20) < 0.01
