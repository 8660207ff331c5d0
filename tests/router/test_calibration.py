"""Predictions meet what came true: parts from stamps, moving corrections, their bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.router.actual_times import actual_times
from pagewire.router.calibration import BOUND, HALF_LIFE, UNSEEN, WARM_UP, WEIGHT, Calibration, PartRecord
from pagewire.router.prediction import PARTS, UNCORRECTED, Prediction, Way


def line(process: str, **at_s: float) -> Timeline:
    return Timeline(process=process, stamps=tuple(Stamp(Phase(phase), when) for phase, when in at_s.items()))


STAMPS = {"run_received": 7.0, "prefill_begun": 8.0, "last_chunk_computed": 10.0}
BUILT = line("p", **STAMPS)
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
    said = Prediction(queue_s=0.1, prefill_s=0.3)
    assert actual_times(Way.LOCAL, ROUTER, [line("d", accepted=1.0)], 1, said) == {}
    assert actual_times(Way.LOCAL, ROUTER, [line("d", accepted=1.0, first_step=2.0)], 1, Prediction()) == {}
    built = actual_times(Way.LOCAL, line("r"), [line("d", accepted=1.0, first_step=2.0)], 5, said)
    assert built == pytest.approx({"queue_s": 0.25, "prefill_s": 0.75})
    built = actual_times(Way.REMOTE, line("r"), [line("d"), BUILT], 5, Prediction())
    assert built == {"queue_s": 1.0, "prefill_s": 2.0}
    gap = actual_times(Way.REMOTE, line("r"), [line("d", first_tokens_received=1.0, first_step=3.0)] * 2, 5, said)
    assert gap == {"gap_s": 2.0}
    for only in ({"prefill_begun": 8.0}, {"run_received": 7.0}):
        half = line(
            "p", **{stamp: at for stamp, at in STAMPS.items() if stamp in only or stamp == "last_chunk_computed"}
        )
        assert actual_times(Way.REMOTE, ROUTER, [line("d"), half], 2, said) == {}
    begun = line("p", run_received=7.0, prefill_begun=8.0)
    assert actual_times(Way.REMOTE, ROUTER, [line("d"), begun], 2, said) == {}


@pytest.mark.parametrize(
    ("way", "tokens", "tpot_s"),
    [
        (Way.LOCAL, 1, None),
        (Way.LOCAL, 2, 6.0),
        (Way.LOCAL, 4, 2.0),
        (Way.REMOTE, 1, None),
        (Way.REMOTE, 2, None),  # the second token's gap has the transfer in it
        (Way.REMOTE, 3, 4.0),
        (Way.REMOTE, 4, 2.0),
    ],
)
def test_the_time_of_a_token_is_that_of_those_after_the_first_gaps(way: Way, tokens: int, tpot_s: float | None) -> None:
    router = line("r", first_token=1.0, last_token=7.0)
    pods = [line("d", first_tokens_received=1.0, first_step=3.0), line("p")]
    assert actual_times(way, router, pods, tokens, Prediction()).get("tpot_s") == tpot_s
    assert "tpot_s" not in actual_times(way, line("r", first_token=1.0), pods, tokens, Prediction())


def test_what_a_stamp_before_its_time_makes_negative_is_left_out_and_nothing_is_a_time_too() -> None:
    def relay_s(first_s: float) -> float | None:
        router = line("r", submitted=1.0, first_token=1.0 + first_s)
        return actual_times(Way.REMOTE, router, [line("d"), BUILT], 2, Prediction()).get("relay_s")

    assert (relay_s(3.5), relay_s(3.0), relay_s(2.5)) == (0.5, 0.0, None)


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


@given(seen=st.lists(st.tuples(*(st.floats(1, 3) for _ in range(3))), min_size=1, max_size=80))
def test_a_record_has_sums_and_means_in_which_each_request_fades_by_those_after_it(
    seen: list[tuple[float, float, float]],
) -> None:
    """As long as there are few, all count alike."""
    record = PartRecord()
    raw, actual, error = 0.0, 0.0, 0.0
    for at, (predicted_s, factor, actual_s) in enumerate(seen, start=1):
        record.observe(predicted_s, factor, actual_s)
        new = max(1 / at, WEIGHT)
        raw = (1 - new) * raw + new * predicted_s / factor
        actual = (1 - new) * actual + new * actual_s
        error = (1 - new) * error + new * abs(actual_s - predicted_s)
        is_warm = at >= WARM_UP
        assert record.factor == pytest.approx(min(4.0, max(0.25, actual / raw)) if is_warm else 1.0)
        assert record.error == (pytest.approx(error / actual) if is_warm else math.inf)
    assert record.count == len(seen)
    assert record.predicted_s == pytest.approx(sum(predicted for predicted, _, _ in seen))
    assert record.actual_s == pytest.approx(sum(actual for _, _, actual in seen))
    assert record.error_s == pytest.approx(sum(abs(actual - predicted) for predicted, _, actual in seen))


def of_many(predicted_s: float, actual_s: float) -> PartRecord:
    record = PartRecord()
    for _ in range(WARM_UP):
        record.observe(predicted_s, 1.0, actual_s)
    return record


def test_a_factor_is_a_quarter_at_least_and_four_at_most_and_a_part_of_nothing_has_none() -> None:
    assert [of_many(1.0, each).factor for each in (0.0, 0.2, 0.3, 3.5, 9.0)] == pytest.approx([0.25, 0.25, 0.3, 3.5, 4])
    assert (of_many(0.0, 1.0).factor, of_many(0.0, 0.0).factor) == (1.0, 1.0)
    assert (of_many(1.0, 0.0).error, of_many(0.0, 1.0).error) == (math.inf, 1.0)


@pytest.mark.parametrize(
    ("usually_said_s", "usual_s", "said_s", "taken_s", "counts_as_s"),
    [
        (0.5, 0.5, 0.5, 99.0, 5.0),  # ten times what it took before
        (2.0, 0.5, 0.5, 99.0, 20.0),  # or what was said before
        (0.5, 0.5, 2.0, 99.0, 20.0),  # or what was said now
        (0.5, 0.5, 0.5, 4.0, 4.0),
    ],
)
def test_what_took_far_longer_than_anything_before_counts_as_ten_times_as_long(
    usually_said_s: float, usual_s: float, said_s: float, taken_s: float, counts_as_s: float
) -> None:
    record = of_many(usually_said_s, usual_s)
    record.observe(said_s, 1.0, taken_s)
    counted, said = WARM_UP * usual_s + counts_as_s, WARM_UP * usually_said_s + said_s
    assert record.factor == pytest.approx(counted / said)
    off = WARM_UP * abs(usual_s - usually_said_s) + abs(counts_as_s - said_s)
    assert record.error == pytest.approx(off / counted)
    assert record.actual_s == pytest.approx(WARM_UP * usual_s + taken_s), "what really passed is told"


def test_while_few_are_known_nothing_counts_as_less_than_it_took() -> None:
    record = PartRecord()
    for _ in range(WARM_UP - 1):
        record.observe(1.0, 1.0, 1.0)
    record.observe(1.0, 1.0, 21.0)
    assert record.factor == pytest.approx(3.0)


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


def test_of_few_answers_all_count_alike_and_one_of_nothing_counts_as_one() -> None:
    calibration, empty = Calibration(), Calibration()
    for tokens, mean in ((10, 10), (20, 15), (60, 30)):
        calibration.answered(tokens)
        assert calibration.answer_tokens == pytest.approx(mean)
    empty.answered(0)
    assert empty.answer_tokens == 1.0


@pytest.mark.parametrize(("share", "counts"), [(0.095, False), (0.105, True)])
def test_a_part_below_a_tenth_of_the_whole_makes_no_error(share: float, counts: bool) -> None:
    calibration = Calibration()
    truth = {"queue_s": share, "prefill_s": 1.0 - share, "relay_s": 0.0}
    for _ in range(50):
        calibration.observe(Way.REMOTE, Prediction(queue_s=2.0, prefill_s=1.0 - share), UNCORRECTED, truth)
    assert (calibration.error(Way.REMOTE) > 1.0) is counts


def test_a_part_of_a_tenth_counts() -> None:
    calibration = Calibration()
    for _ in range(WARM_UP):
        said = Prediction(queue_s=5.0, prefill_s=9.0)
        calibration.observe(Way.LOCAL, said, UNCORRECTED, {"queue_s": 1.0, "prefill_s": 9.0})
    assert calibration.error(Way.LOCAL) == 4.0


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
