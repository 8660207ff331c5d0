"""What is believed of what was seen: from how much on, and what is left to chance; test_fit.py finds laws again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from pagewire.slo.costs.calibration import BesideSeen, DecodeSeen, PromptSeen, Seen, calibrated
from pagewire.slo.costs.cost_model import CostModel, LinkLaw, SharingLaw, StepKind

PREFILL, DECODE = StepKind.PREFILL, StepKind.DECODE


def prompt(tokens: int, *, rest_s: float = 0.007) -> PromptSeen:
    compute_s, intake_s = 0.004 + 2e-4 * tokens, 0.002 + 1e-6 * tokens
    return PromptSeen(
        tokens=tokens, steps=1, compute_s=compute_s, intake_s=intake_s, ttft_s=intake_s + compute_s + rest_s
    )


def batch(size: int) -> DecodeSeen:
    return DecodeSeen(batch=size, context=100.0 / size, step_s=0.015 + 5e-4 * size)


def seen(beside: Sequence[BesideSeen] = ()) -> Seen:
    """Return as little as a law takes."""
    told = Seen(
        prompts=[prompt(tokens) for tokens in (10, 40, 90, 200)], decodes=[batch(size) for size in (1, 2, 4, 8)]
    )
    told.beside += beside
    return told


def fitted(told: Seen) -> CostModel:
    return calibrated(told, token_bytes=4, about={"model": "m"})


def test_four_prompts_and_four_batches_are_enough_and_three_are_not() -> None:
    costs = fitted(seen())
    assert (costs.prefill.lines[0].prefill_token_s, costs.decode.lines[0].decode_s) == pytest.approx((2e-4, 5e-4))
    assert costs.decode.lines[0].prefill_token_s == costs.prefill.lines[0].prefill_token_s
    assert costs.decode.lines[0].prefill_pair_s == costs.prefill.lines[0].prefill_pair_s
    assert (costs.token_bytes, costs.about) == (4, {"model": "m"})
    for name, what in (("prompts", "3 prompts were seen"), ("decodes", "3 batches were seen")):
        told = seen()
        getattr(told, name).pop()
        with pytest.raises(ValueError, match=f"{what}: a law takes 4"):
            fitted(told)


def test_a_link_is_fitted_to_four_prompts_that_travelled() -> None:
    told = seen()
    assert (fitted(told).link, [*fitted(told).residuals]) == (LinkLaw(), ["prefill", "decode", "intake"])
    shipped = [
        dataclasses.replace(each, num_bytes=each.tokens * 1000, transfer_s=0.001 + each.tokens * 1e-6)
        for each in told.prompts
    ]
    told.prompts = [*shipped[:3], told.prompts[3]]
    assert fitted(told).link == LinkLaw()
    told.prompts = [*shipped, prompt(300)]  # one that did not travel is none of it
    costs = fitted(told)
    assert (costs.link.latency_s, costs.link.bytes_per_s) == pytest.approx((0.001, 1e9))
    assert [*costs.residuals] == ["prefill", "decode", "intake", "link"]


def test_of_what_is_left_of_the_first_token_the_median_counts_and_never_less_than_nothing() -> None:
    told = seen()
    rests_s = (0.7, 0.014, 0.021, 0.0)
    told.prompts = [prompt(each.tokens, rest_s=rest_s) for each, rest_s in zip(told.prompts, rests_s, strict=True)]
    assert fitted(told).frame_s == pytest.approx(0.0175 / 7)
    told.prompts = [prompt(each.tokens, rest_s=-0.001) for each in told.prompts]
    assert fitted(told).frame_s == 0.0


def test_the_spread_is_the_median_of_those_that_were_seen_and_none_without() -> None:
    told = seen()
    assert fitted(told).noise == 0.0
    told.spreads = [0.9, 0.1, 0.2]
    assert fitted(told).noise == 0.2


def test_residuals_tell_how_far_off_a_law_is() -> None:
    told = seen()
    told.decodes = [DecodeSeen(batch=1, context=0.0, step_s=step_s) for step_s in (1.0, 3.0, 1.0, 3.0)]
    assert fitted(told).residuals["decode"] == pytest.approx({"rms_s": 1.0, "largest_s": 1.0, "mean_relative": 2 / 3})


def beside(*added: float, overlap: float = 1.0) -> list[BesideSeen]:
    """Return steps of 2 s that took so much more of it beside a prompt."""
    return [
        BesideSeen(mine=DECODE, other=PREFILL, alone_s=2.0, beside_s=2.0 + 2.0 * each, overlap=overlap)
        for each in added
    ]


@pytest.mark.parametrize(
    ("added", "factor"),
    [
        ((), 1.0),
        ((0.5,), 1.0),  # of one nobody knows what chance did
        ((0.5, 0.25), 1.375),  # 3 standard errors
        ((0.625, 0.125), 1.0),  # 1.5
        ((0.59375, 0.15625), 1.0),  # 1.7
        ((0.53125, 0.21875), 1.375),  # 2.4
        ((0.5, 0.5, 0.5), 1.5),
        ((-0.5, -0.25), 1.0),  # nobody is made quicker
        ((0.0, 0.0), 1.0),
    ],
)
def test_a_factor_is_believed_from_two_standard_errors_on(added: tuple[float, ...], factor: float) -> None:
    assert fitted(seen(beside(*added))).sharing == SharingLaw(decode_beside_prefill=factor)


def test_of_a_part_of_a_step_that_had_company_the_whole_is_concluded() -> None:
    told = [*beside(0.25, overlap=0.5), *beside(0.125, overlap=0.25)]
    assert fitted(seen(told)).sharing.decode_beside_prefill == 1.5
    alone = BesideSeen(mine=DECODE, other=PREFILL, alone_s=2.0, beside_s=90.0, overlap=0.0)
    assert fitted(seen([*told, alone])).sharing.decode_beside_prefill == 1.5


def test_unless_told_a_prompt_did_not_travel_and_company_was_there_all_the_time() -> None:
    assert (prompt(1).num_bytes, prompt(1).transfer_s) == (0, 0.0)
    assert BesideSeen(mine=DECODE, other=PREFILL, alone_s=1.0, beside_s=1.0).overlap == 1.0
