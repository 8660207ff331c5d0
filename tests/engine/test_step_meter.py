"""What a step costs with a sequence more: a slope from batches that vary, nothing from batches that do not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine.step_meter import StepMeter


def test_the_slope_of_steps_over_batches_is_found() -> None:
    meter, chance = StepMeter(), random.Random(1)
    for _ in range(500):
        batch = chance.randrange(1, 33)
        meter.observe(0, batch, 0.01 + 0.0005 * batch)
    assert meter.step_s_per_sequence == pytest.approx(0.0005)
    assert meter.step_s == pytest.approx(0.01 + 0.0005 * meter.step_sequences)


def test_batches_of_one_size_tell_nothing_of_a_slope() -> None:
    meter, chance = StepMeter(), random.Random(1)
    for _ in range(100):
        meter.observe(0, 8, 0.01 + chance.uniform(0, 0.01))
    assert meter.step_s_per_sequence == 0.0
    assert meter.step_sequences == pytest.approx(8)


def test_steps_with_prompts_are_no_decode_steps() -> None:
    meter = StepMeter()
    for _ in range(50):
        meter.observe(512, 4, 1.0)
    assert (meter.step_s, meter.step_sequences, meter.step_s_per_sequence) == (0.0, 0.0, 0.0)


@given(steps=st.lists(st.tuples(st.integers(1, 256), st.floats(1e-6, 10.0)), max_size=40))
def test_no_batch_is_said_to_cost_less_than_a_smaller_one(steps: list[tuple[int, float]]) -> None:
    meter = StepMeter()
    for batch, seconds in steps:
        meter.observe(0, batch, seconds)
        assert meter.step_s_per_sequence >= 0.0


def test_nothing_is_known_before_anything_was_measured() -> None:
    meter = StepMeter()
    assert (meter.prefill_s_per_token, meter.step_s, meter.step_sequences, meter.step_s_per_sequence) == (0, 0, 0, 0)
    assert (meter.copy_out_s_per_block, meter.copy_in_s_per_block) == (0, 0)
    meter.observe(0, 0, 1.0)
    assert (meter.prefill_s_per_token, meter.step_s, meter.step_sequences) == (0, 0, 0)


def test_the_first_measurement_stands_and_of_each_further_one_a_fifth_counts() -> None:
    meter = StepMeter()
    meter.observe(100, 0, 2.0)
    assert meter.prefill_s_per_token == 0.02
    meter.observe(10, 0, 0.7)
    assert meter.prefill_s_per_token == pytest.approx(0.8 * 0.02 + 0.2 * 0.07)
    meter.observe(0, 4, 0.01)
    assert (meter.step_s, meter.step_sequences) == (0.01, 4.0)
    meter.observe(0, 9, 0.02)
    assert (meter.step_s, meter.step_sequences) == pytest.approx((0.012, 5.0))


def test_copies_out_of_the_pool_and_into_it_are_told_apart() -> None:
    meter = StepMeter()
    meter.observe_copies(4, 2.0, is_out=True)
    assert (meter.copy_out_s_per_block, meter.copy_in_s_per_block) == (0.5, 0.0)
    meter.observe_copies(2, 3.0, is_out=False)
    assert (meter.copy_out_s_per_block, meter.copy_in_s_per_block) == (0.5, 1.5)
    meter.observe_copies(1, 1.0, is_out=True)
    meter.observe_copies(1, 2.5, is_out=False)
    assert (meter.copy_out_s_per_block, meter.copy_in_s_per_block) == pytest.approx((0.6, 1.7))


def test_of_a_mixed_step_the_prompts_have_what_a_decode_step_would_not_have_taken() -> None:
    meter = StepMeter()
    meter.observe(0, 4, 0.5)
    meter.observe(10, 4, 2.5)
    assert meter.prefill_s_per_token == 0.2
    meter.observe(10, 0, 2.0)
    assert meter.prefill_s_per_token == pytest.approx(0.2), "one without decodes is the prompts' alone"
    meter.observe(10, 4, 0.25)
    assert meter.prefill_s_per_token == pytest.approx(0.16), "which took no less than nothing"


def test_a_slope_is_the_averaged_product_of_what_is_off_over_the_averaged_square() -> None:
    """Both averages begin at 0, and what is off is what differs from the averages before."""
    meter = StepMeter()
    meter.observe(0, 4, 5.0)
    meter.observe(0, 6, 8.0)
    assert meter.step_s_per_sequence == 0.0, "a twentieth of 2 * 2 tells nothing yet"
    meter.observe(0, 14, 10.6)
    # Now the averages are 4.4 and 5.6: the newest is 9.6 and 5 off.
    spread, spread_s = 0.95 * 0.05 * 4 + 0.05 * 9.6**2, 0.95 * 0.05 * 6 + 0.05 * 9.6 * 5.0
    assert meter.step_s_per_sequence == pytest.approx(spread_s / spread)


def test_steps_that_become_shorter_with_more_sequences_say_that_one_more_costs_nothing() -> None:
    meter = StepMeter()
    meter.observe(0, 1, 9.0)
    meter.observe(0, 31, 1.0)
    assert meter.step_s_per_sequence == 0.0


def test_a_quarter_of_a_sequence_squared_is_spread_enough() -> None:
    meter = StepMeter()
    meter.observe(0, 1, 1.0)
    meter.observe(0, 4, 4.0)
    assert meter.step_s_per_sequence == pytest.approx(1.0), "a twentieth of 3 * 3"
    below = StepMeter()
    below.observe(0, 1, 1.0)
    below.observe(0, 3, 3.0)
    assert below.step_s_per_sequence == 0.0, "a twentieth of 2 * 2"


def test_a_draft_costs_what_its_step_took_longer() -> None:
    meter = StepMeter()
    meter.observe(0, 4, 1.0, num_drafted=3)
    assert (meter.decode_s(4), meter.draft_s(4, 3)) == (None, 0.0)  # than what?
    meter.observe(0, 4, 0.75)
    meter.observe(0, 4, 1.35, num_drafted=3)
    assert meter.decode_s(4) == 0.75
    assert meter.draft_s(4, 3) == pytest.approx(0.6)
    assert meter.draft_s(5, 2) == pytest.approx(0.4)
    meter.observe(100, 5, 9.0, num_drafted=2)
    assert meter.prefill_s_per_token == pytest.approx((9.0 - 0.75 - 0.4) / 100)
    meter.observe(0, 4, 90.0, num_drafted=3)  # somebody stopped the process
    assert meter.draft_s(4, 3) == pytest.approx(0.64 * 0.6 + 0.36 * 3 * 0.75)
    assert meter.decode_s(4) == 0.75
