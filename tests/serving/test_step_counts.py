"""What steps came to, as vLLM's histograms have it: its bounds, and a value of 0 tokens that is none."""

from __future__ import annotations

from math import inf

import pytest

from pagewire.core.distribution import Distribution
from pagewire.core.engine_messages import BlockLife, StepDone
from pagewire.serving.step_counts import StepCounts


def seen(distribution: Distribution) -> dict[float, int]:
    """Return how many values fell into each bucket that has any."""
    buckets = distribution.buckets()
    counts = [count - before for (_, count), before in zip(buckets, (0, *(n for _, n in buckets)), strict=False)]
    return {bound: count for (bound, _), count in zip(buckets, counts, strict=True) if count}


def test_the_bounds_are_vllms() -> None:
    counts = StepCounts()
    assert counts.tokens.bounds == (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    for lives in (counts.lived_s, counts.idle_s, counts.gap_s):
        assert lives.bounds == pytest.approx([
            0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800
        ])  # fmt: skip


def test_the_tokens_of_each_step_that_has_any_are_counted() -> None:
    counts = StepCounts()
    for num_tokens in (1, 0, 8, 9, 20000):
        counts.note(StepDone(num_tokens=num_tokens))
    assert seen(counts.tokens) == {1: 1, 8: 1, 16: 1, inf: 1}
    assert (counts.tokens.count, counts.tokens.total) == (4, 20018)


def test_of_each_life_its_length_its_last_idle_time_and_all_gaps_are_counted() -> None:
    counts = StepCounts()
    counts.note(
        StepDone(lives=(BlockLife(lived_s=9.0, idle_s=2.0, gaps_s=(3.0, 4.0)), BlockLife(lived_s=40.0, idle_s=40.0)))
    )
    assert seen(counts.lived_s) == {10: 1, 60: 1}
    assert seen(counts.idle_s) == {2: 1, 60: 1}
    assert seen(counts.gap_s) == {5: 2}
    assert (counts.lived_s.total, counts.idle_s.total, counts.gap_s.total) == (49.0, 42.0, 7.0)
    assert counts.tokens.count == 0
