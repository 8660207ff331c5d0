"""What a transport is told: how much may be in flight, how long it waits, and what it counts."""

from __future__ import annotations

import pytest

from pagewire.core.messages import Role
from pagewire.kvtransfer.effects import Claim, HandOver, Outcome, Verdict
from pagewire.kvtransfer.transport import Flow, TransferCounters, TransportTimes
from pagewire.serving.pod_config import PodConfig

MIB = 1 << 20


@pytest.mark.parametrize(("window", "message"), [(2, 1), (100, 50), (101, 50), (1 << 40, 1)])
def test_a_window_has_room_for_two_messages(window: int, message: int) -> None:
    assert Flow(window_bytes=window, message_bytes=message).message_bytes == message


@pytest.mark.parametrize(("window", "message"), [(99, 50), (1, 1), (50, 50), (10, 0), (10, -1), (0, 0), (-2, -1)])
def test_no_other_window_is_taken(window: int, message: int) -> None:
    with pytest.raises(ValueError, match=f"a window of {window} bytes for messages of {message}"):
        Flow(window_bytes=window, message_bytes=message)


def test_unless_told_otherwise_a_stream_has_the_documented_window() -> None:
    assert Flow() == Flow(window_bytes=16 * MIB, message_bytes=2 * MIB, sums_follow_bytes=4 * MIB)


def test_nothing_was_counted_before_anything_went_through() -> None:
    counters = TransferCounters()
    assert counters == TransferCounters(
        bytes=0, blocks=0, messages=0, placed_bytes=0, late=0, duplicate=0, corrupt=0, dropped=0
    )


def test_an_answer_without_a_block_names_none_and_a_loss_keeps_none() -> None:
    assert Claim(Verdict.WAIT) == (Verdict.WAIT, -1)
    assert HandOver(outcome=Outcome.LOST).kept_blocks == 0


def test_a_stream_that_is_stuck_ends_and_is_dialled_again_in_the_time_that_bytes_have() -> None:
    times, config = TransportTimes(), PodConfig(model="m", role=Role.DECODE, cluster_secret="s")
    assert times.carry_s + times.connect_s <= config.transfer_timeout_s
    assert times.reconnect_min_s <= 0.1
    assert times.reconnect_min_s < times.reconnect_max_s


def test_a_source_waits_for_as_long_as_its_taker_may_take() -> None:
    times = TransportTimes()
    assert times.write_s >= times.place_s, "which reads on when it has placed"
    assert times.credit_s > times.place_s, "and gives credit then"
