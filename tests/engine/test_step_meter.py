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
