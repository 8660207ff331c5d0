"""Predictions meet what came true: parts from stamps, moving corrections, their bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.router.actual_times import actual_times
from pagewire.router.calibration import BOUND, HALF_LIFE, UNSEEN, WARM_UP, Calibration, PartRecord
from pagewire.router.prediction import PARTS, UNCORRECTED, Prediction, Way


def line(process: str, **at_s: float) -> Timeline:
    return Timeline(process=process, stamps=tuple(Stamp(Phase(phase), when) for phase, when in at_s.items()))


ROUTER = line("r", received=0.0, submitted=1.0, first_token=1.5, last_token=2.54)


def test_the_parts_of_a_remote_prompt_add_up_and_each_is_of_one_process() -> None:
    decode = line("d", accepted=100.0, reserved=100.02, first_tokens_received=100.4, first_step=100.46)
    prefill = line("p", run_received=7.0, prefix_fetched=7.01, prefill_begun=7.06, last_chunk_computed=7.36)
    found = actual_times(Way.REMOTE, ROUTER, [decode, prefill], 51, Prediction())
    assert found["queue_s"] == pytest.approx(0.02 + 0.05)
    assert found["prefill_s"] == pytest.approx(0.01 + 0.3)
    assert found["queue_s"] + found["prefill_s"] + found["relay_s"] == pytest.approx(0.5)
    assert found["gap_s"] == pytest.approx(0.06)
    assert found["tpot_s"] == pytest.approx((1.04 - 0.06) / 49)


def test_a_local_prompt_is_divided_as_it_was_predicted() -> None:
    decode = line("d", accepted=100.0, reserved=100.02, first_step=100.4)
    found = actual_times(Way.LOCAL, ROUTER, [decode], 3, Prediction(queue_s=0.1, prefill_s=0.3))
    assert found["queue_s"] == pytest.approx(0.1)
    assert found["prefill_s"] == pytest.approx(0.3)
    assert found["relay_s"] == pytest.approx(0.1)
    assert found["tpot_s"] == pytest.approx(1.04 / 2)
    assert "gap_s" not in found


def test_what_was_not_stamped_is_left_out() -> None:
    assert actual_times(Way.REMOTE, ROUTER, [line("d", accepted=1.0)], 5, Prediction()) == {}
    bare = actual_times(Way.REMOTE, ROUTER, [line("d", accepted=1.0), line("p", run_received=1.0)], 5, Prediction())
    assert bare == {}
    assert actual_times(Way.LOCAL, line("r"), [], 5, Prediction()) == {}


def test_a_steady_error_is_corrected_and_shows_as_small_afterwards() -> None:
    calibration = Calibration()
    raw = Prediction(queue_s=0.1, prefill_s=0.2, relay_s=0.01, gap_s=0.02, tpot_s=0.03)
    truth = {"queue_s": 0.2, "prefill_s": 0.1, "relay_s": 0.01, "gap_s": 0.06, "tpot_s": 0.03}
    assert calibration.error(Way.REMOTE) == math.inf
    for _ in range(400):
        factors = calibration.correction.remote
        said = Prediction(**{part: getattr(raw, part) * getattr(factors, part) for part in PARTS})
        calibration.observe(Way.REMOTE, said, calibration.correction, truth)
    factors = calibration.correction.remote
    assert {part: getattr(factors, part) for part in PARTS} == pytest.approx(
        {"queue_s": 2.0, "prefill_s": 0.5, "relay_s": 1.0, "gap_s": 3.0, "tpot_s": 1.0}
    )
    assert calibration.error(Way.REMOTE) < 0.01
    assert calibration.correction.local == UNCORRECTED.local
    assert calibration.records[Way.REMOTE, "queue_s"].count == 400


@given(seen=st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=60))
def test_factors_stay_within_their_bounds_whatever_comes(seen: list[tuple[float, float]]) -> None:
    record = PartRecord()
    for at, (predicted_s, actual_s) in enumerate(seen):
        factor = record.factor
        assert factor == 1.0 or at >= WARM_UP
        record.observe(predicted_s, factor, actual_s)
        assert 1 / BOUND <= record.factor <= BOUND
    assert record.predicted_s == pytest.approx(sum(predicted for predicted, _ in seen))


def test_one_stall_hardly_moves_what_many_requests_told() -> None:
    record = PartRecord()
    for _ in range(200):
        record.observe(0.1 * record.factor, record.factor, 0.1)
    record.observe(0.1, record.factor, 60.0)
    assert record.factor < 1.25


def test_answers_are_as_long_as_they_were() -> None:
    calibration = Calibration()
    for _ in range(300):
        calibration.answered(40)
    assert calibration.answer_tokens == pytest.approx(40, abs=1)


@pytest.mark.parametrize(("share", "counts"), [(0.095, False), (0.105, True)])
def test_a_part_below_a_tenth_of_the_whole_makes_no_error(share: float, counts: bool) -> None:
    calibration = Calibration()
    truth = {"queue_s": share, "prefill_s": 1.0 - share, "relay_s": 0.0}
    for _ in range(50):
        calibration.observe(Way.REMOTE, Prediction(queue_s=2.0, prefill_s=1.0 - share), UNCORRECTED, truth)
    assert (calibration.error(Way.REMOTE) > 1.0) is counts


def test_a_way_that_was_slow_once_and_is_not_chosen_any_more_is_thought_dear_for_a_while_only() -> None:
    calibration, raw = Calibration(), Prediction(queue_s=0.1, prefill_s=0.1)

    def went(way: Way, count: int, **actual_s: float) -> None:
        for _ in range(count):
            said = {part: getattr(raw, part) * getattr(calibration.correction.of(way), part) for part in actual_s}
            calibration.observe(way, Prediction(**said), calibration.correction, actual_s)

    went(Way.REMOTE, WARM_UP, queue_s=0.3, prefill_s=0.05)
    went(Way.LOCAL, UNSEEN, queue_s=0.1)
    assert calibration.correction.remote.queue_s == pytest.approx(3.0)
    assert calibration.correction.remote.prefill_s == pytest.approx(0.5)
    went(Way.LOCAL, HALF_LIFE, queue_s=0.1)
    assert calibration.correction.remote.queue_s == pytest.approx(2.0)
    assert calibration.correction.remote.prefill_s == pytest.approx(0.5), "nothing keeps anybody from choosing it"
    went(Way.REMOTE, 1, queue_s=0.3)
    assert calibration.correction.remote.queue_s == pytest.approx(3.0), "so it was true"
    assert calibration.correction.local.queue_s == pytest.approx(1.0)
