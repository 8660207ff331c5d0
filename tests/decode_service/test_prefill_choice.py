"""The predictions and their corrections, case by case."""

from __future__ import annotations

import pytest

from pagewire.core.load import Load
from pagewire.core.messages import Candidate
from pagewire.core.rest import HALF_LIFE_S, REST_S
from pagewire.decode_service.prefill_choice import BOUND, WEIGHT, Calibration, Prediction, local_s, remote_s
from pagewire.engine.exchange.prefix_plan import PrefixPlan
from pagewire.kvtransfer.link_cost import LinkCost

ONE = PrefixPlan(num_blocks=0, seconds=1.0)  # a prompt that takes a second to build
LINK = LinkCost(rtt_s=0.01, s_per_byte=1e-9)


def candidate(queue_s: float = 0.0) -> Candidate:
    return Candidate(pod_id="p", address="a", queue_s=queue_s)


def is_local(here: Load, there: Load | None = None, queue_s: float = 0.0, prefix: PrefixPlan = ONE) -> bool:
    return local_s(prefix, here, 1e-3) <= remote_s(ONE, candidate(queue_s), there, 1e-3, LINK)


@pytest.mark.parametrize(
    ("here", "there", "queue_s", "expected"),
    [
        # both idle: nobody is disturbed here, and there is nobody to ask
        (Load(), None, 0.0, True),
        # one running sequence would stall for the whole prompt
        (Load(num_running=1), None, 0.0, False),
        # the prefill pod is busy for longer than the stall, as the router says
        (Load(num_running=1), None, 2.0, True),
        # ... or as it says itself
        (Load(num_running=1), Load(waiting_tokens=2000), 0.0, True),
        # prompts wait here already
        (Load(waiting_tokens=500), None, 0.0, False),
    ],
)
def test_where_the_prompt_is_ready_sooner(here: Load, there: Load | None, queue_s: float, expected: bool) -> None:
    assert is_local(here, there, queue_s) is expected


def test_a_prompt_that_is_mostly_here_stays_here_though_others_run() -> None:
    nearly = PrefixPlan(num_blocks=60, seconds=0.01)
    assert is_local(Load(num_running=4), prefix=nearly)


def test_a_local_prompt_waits_for_those_before_it_and_stalls_all_that_run() -> None:
    assert local_s(ONE, Load(), 0.25) == 1.0
    assert local_s(ONE, Load(waiting_tokens=6, num_running=3), 0.25) == (1.5 + 1.0) * 4


def test_a_remote_prompt_waits_for_the_longer_of_what_the_router_said_and_what_the_pod_says() -> None:
    link = LinkCost(rtt_s=0.5)
    assert remote_s(ONE, candidate(), None, 0.25, link) == 1.5
    assert remote_s(ONE, candidate(2.0), None, 0.25, link) == 3.5
    assert remote_s(ONE, candidate(2.0), Load(waiting_tokens=7), 0.25, link) == 3.5
    assert remote_s(ONE, candidate(2.0), Load(waiting_tokens=9), 0.25, link) == 3.75
    # Of a pod that has not spoken yet nobody is known to wait there.
    assert remote_s(ONE, candidate(), None, 99.0, link) == remote_s(ONE, candidate(), Load(), 99.0, link) == 1.5


def test_what_is_no_choice_is_said_to_take_no_time() -> None:
    assert (Prediction().local_s, Prediction().remote_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("actual_s", "factor"),
    [(1.0, 1.0), (2.0, 2.0), (0.5, 0.5), (BOUND, BOUND), (BOUND + 1, BOUND), (1 / BOUND, 1 / BOUND), (0.01, 1 / BOUND)],
)
def test_one_observation_moves_a_correction_by_its_weight_and_counts_no_further_than_the_bound(
    actual_s: float, factor: float
) -> None:
    calibration = Calibration()
    calibration.observe(1.0, actual_s)
    assert calibration.factor == pytest.approx(1.0 + WEIGHT * (factor - 1.0), abs=1e-12)
    assert 0 < WEIGHT < 0.5
    before = calibration.factor
    calibration.observe(2.0, 2.0 * actual_s)  # said with that correction: it was still as wrong
    assert calibration.factor == pytest.approx(before + WEIGHT * (before * factor - before), abs=1e-12)


def test_a_calibration_closes_in_on_what_is_true() -> None:
    calibration = Calibration()
    for _ in range(100):
        calibration.observe(predicted_s=calibration.factor * 1.0, actual_s=2.0)
    assert calibration.factor == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("actual_s", "bound"), [(1e9, BOUND), (1e-9, 1 / BOUND)])
def test_a_calibration_is_bounded(actual_s: float, bound: float) -> None:
    calibration = Calibration()
    for _ in range(1000):
        calibration.observe(calibration.factor, actual_s)
    assert calibration.factor == pytest.approx(bound, rel=1e-3)


def test_nothing_is_learned_of_nothing() -> None:
    calibration = Calibration()
    calibration.observe(0.0, 1.0)
    calibration.observe(1.0, 0.0)
    calibration.observe(-1.0, 1.0)
    calibration.observe(1.0, -1.0)
    assert calibration.factor == 1.0
    calibration.observe(0.5, 0.75)  # less than a second is something
    assert calibration.factor > 1.0


def test_what_took_long_once_is_tried_again_after_a_rest() -> None:
    """It would not be chosen, and so never be corrected."""
    calibration = Calibration()
    for _ in range(100):
        calibration.observe(calibration.factor, BOUND * 10)
    calibration.rested(REST_S)
    assert calibration.factor == pytest.approx(BOUND, rel=1e-3)
    assert calibration.belief == 1.0
    calibration.rested(HALF_LIFE_S)
    assert calibration.belief == pytest.approx(0.5)
    assert calibration.factor == pytest.approx(1 + (BOUND - 1) / 2, rel=1e-3)
    calibration.observe(1.0, 1.0)
    assert calibration.belief == 1.0
    known = calibration.factor
    calibration.rested(REST_S)  # a rest of its own
    assert calibration.factor == known
    calibration.rested(1e6)
    assert calibration.factor == pytest.approx(1.0)
    calibration.observe(1.0, 0.5)
    known = calibration.factor
    calibration.rested(1e6)
    assert calibration.factor == known < 1.0  # what is thought cheap is tried, and corrected then
