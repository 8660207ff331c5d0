"""Predictions as values: what TTFT is made of, and whose factors a way has."""

from __future__ import annotations

from dataclasses import asdict

from pagewire.router.prediction import (
    NO_TARGETS,
    PARTS,
    UNCORRECTED,
    UNPREDICTED,
    Correction,
    Factors,
    Prediction,
    Targets,
    Way,
)


def test_ttft_is_the_queue_the_prompt_and_the_way_to_the_client() -> None:
    assert Prediction(queue_s=1.0, prefill_s=2.0, relay_s=4.0, gap_s=8.0, tpot_s=16.0).ttft_s == 7.0
    assert PARTS == ("queue_s", "prefill_s", "relay_s", "gap_s", "tpot_s")


def test_what_nobody_said_is_nothing_and_what_nobody_corrected_stays() -> None:
    assert asdict(UNPREDICTED) == dict.fromkeys(PARTS, 0.0)
    assert asdict(Factors()) == dict.fromkeys(PARTS, 1.0)
    assert asdict(NO_TARGETS) == {"ttft_s": 0.0, "gap_s": 0.0, "tpot_s": 0.0}
    assert Targets(gap_s=1.0) == Targets(ttft_s=0.0, gap_s=1.0, tpot_s=0.0)
    assert UNCORRECTED.of(Way.LOCAL) == UNCORRECTED.of(Way.REMOTE) == Factors()


def test_each_way_has_its_own_factors() -> None:
    correction = Correction(local=Factors(queue_s=2.0), remote=Factors(queue_s=3.0))
    assert correction.of(Way.LOCAL).queue_s == 2.0
    assert correction.of(Way.REMOTE).queue_s == 3.0
