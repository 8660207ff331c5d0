"""What is learned of a link."""

from __future__ import annotations

import pytest

from pagewire.core.rest import HALF_LIFE_S, REST_S
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


def slow() -> LinkMeter:
    """A link that was slow once: 0.402 s for an exchange, 9 ns a byte."""
    meter, prior = LinkMeter(), LinkCost()
    meter.answered(prior.rtt_s + 0.4)
    meter.landed(MIN_BYTES, MIN_BYTES * (prior.s_per_byte + 8e-9))
    return meter


def test_what_was_slow_once_is_tried_again_after_a_rest() -> None:
    meter, prior = slow(), LinkCost()
    meter.rested(REST_S)
    assert meter.cost.rtt_s - prior.rtt_s == pytest.approx(0.4)
    meter.rested(HALF_LIFE_S)
    assert meter.cost.rtt_s - prior.rtt_s == pytest.approx(0.2)
    assert meter.cost.s_per_byte - prior.s_per_byte == pytest.approx(4e-9)
    for _ in range(10):  # in small steps as in a large one
        meter.rested(HALF_LIFE_S / 10)
    assert meter.cost.rtt_s - prior.rtt_s == pytest.approx(0.1)
    assert meter.cost.s_per_byte - prior.s_per_byte == pytest.approx(2e-9)
    meter.rested(1e9)
    assert meter.cost.rtt_s == pytest.approx(prior.rtt_s)
    assert meter.is_measured


def test_only_what_is_beyond_the_rest_fades() -> None:
    meter, prior = slow(), LinkCost()
    meter.rested(REST_S + HALF_LIFE_S)
    assert meter.cost.rtt_s - prior.rtt_s == pytest.approx(0.2)


def test_a_link_in_use_does_not_fade() -> None:
    """By whatever comes: an answer, or blocks."""
    meter, prior = slow(), LinkCost()
    for _ in range(20):
        meter.rested(REST_S)
        meter.answered(prior.rtt_s + 0.4)
    for _ in range(20):
        meter.rested(REST_S)
        meter.landed(MIN_BYTES, MIN_BYTES * (prior.s_per_byte + 8e-9))
    assert meter.cost.rtt_s - prior.rtt_s == pytest.approx(0.4)
    assert meter.cost.s_per_byte - prior.s_per_byte == pytest.approx(8e-9)


def test_what_is_better_than_was_thought_stays_so_and_what_is_unknown_too() -> None:
    meter = LinkMeter()
    meter.rested(1e6)
    assert meter.cost == LinkCost()
    meter.answered(0.0001)
    meter.landed(1 << 30, 0.1)
    known = meter.cost
    meter.rested(1e6)
    assert meter.cost == known


def test_belief_in_a_pod_halves_after_a_rest_and_is_whole_when_something_comes() -> None:
    meter = LinkMeter()
    meter.rested(REST_S)
    assert meter.belief == 1.0
    meter.rested(2 * HALF_LIFE_S)
    assert meter.belief == pytest.approx(0.25)
    meter.answered(0.1)
    assert meter.belief == 1.0
