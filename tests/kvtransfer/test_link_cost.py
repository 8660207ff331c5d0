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
