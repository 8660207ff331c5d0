"""Least squares without negative coefficients, against scipy and numpy; a cost model found again from what it said."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from scipy.optimize import nnls

from pagewire.slo.costs.calibrate import summary_lines
from pagewire.slo.costs.calibration import BesideSeen, DecodeSeen, PromptSeen, Seen, calibrated
from pagewire.slo.costs.cost_model import SharingLaw, StepKind
from pagewire.slo.costs.fit import fit


@pytest.mark.parametrize("seed", range(12))
def test_it_is_scipys_fit(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 5)
    rows = [[chance.uniform(0, 10 ** chance.randint(0, 4)) for _ in range(size)] for _ in range(chance.randint(6, 40))]
    truth = [chance.uniform(-1, 1) for _ in range(size)]
    values = [sum(x * c for x, c in zip(row, truth, strict=True)) + chance.gauss(0, 1) for row in rows]
    theirs, norm = nnls(np.array(rows), np.array(values))
    ours = fit(rows, values)
    assert np.allclose(ours.coefficients, theirs, rtol=1e-6, atol=1e-9)
    assert ours.rms == pytest.approx(norm / len(rows) ** 0.5)


def test_without_a_bound_in_the_way_it_is_numpys() -> None:
    chance = random.Random(5)
    rows = [[1.0, chance.uniform(0, 100), chance.uniform(0, 1e4)] for _ in range(30)]
    values = [3 + 0.5 * row[1] + 1e-3 * row[2] + chance.gauss(0, 0.01) for row in rows]
    found, *_ = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)
    assert np.allclose(fit(rows, values).coefficients, found)


def test_of_columns_that_say_the_same_one_is_used() -> None:
    assert fit([(1, 2, 1), (2, 4, 2), (3, 6, 3)], [2, 4, 6]).rms == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_of_columns_that_say_nearly_the_same_the_better_is_used(seed: int) -> None:
    chance = random.Random(seed)
    rows = [[x * chance.uniform(0.9, 1.1) for _ in range(3)] for x in range(1, 9)]
    values = [row[0] + chance.gauss(0, 1) for row in rows]
    theirs, norm = nnls(np.array(rows), np.array(values))
    ours = fit(rows, values)
    assert np.allclose(ours.coefficients, theirs, rtol=1e-6, atol=1e-9)
    assert ours.rms == pytest.approx(norm / len(rows) ** 0.5)


def test_of_columns_that_say_the_same_the_first_is_used() -> None:
    assert fit([(1, 1), (2, 2), (3, 3)], [2, 5, 6]).coefficients == pytest.approx((30 / 14, 0.0))
    assert fit([(1, 2, 1), (2, 4, 2), (3, 6, 3)], [2, 5, 6]).coefficients == pytest.approx((30 / 14, 0.0, 0.0))


@pytest.mark.parametrize("seed", range(6))
def test_columns_may_be_negative_and_however_small(seed: int) -> None:
    chance = random.Random(seed)
    rows = [[-1.0, chance.uniform(-1e-3, 0), chance.uniform(-1e-6, 1e-6)] for _ in range(12)]
    values = [-2.0 + 500 * row[1] + 2e5 * row[2] + chance.gauss(0, 0.01) for row in rows]
    theirs, norm = nnls(np.array(rows), np.array(values))
    ours = fit(rows, values)
    assert np.allclose(ours.coefficients, theirs, rtol=1e-6)
    assert ours.rms == pytest.approx(norm / len(rows) ** 0.5)
    assert min(ours.coefficients) > 0


def test_one_row_is_fitted_exactly_and_nothing_but_zeros_by_zeros() -> None:
    assert fit([(2.0,)], [5.0]).coefficients == (2.5,)
    nothing = fit([(1.0, 2.0), (3.0, 4.0)], [0.0, 0.0])
    assert (nothing.coefficients, nothing.rms, nothing.largest, nothing.relative) == ((0.0, 0.0), 0.0, 0.0, 0.0)


def test_eight_columns_are_as_many_as_there_may_be() -> None:
    rows = [[float(at == column) for column in range(8)] for at in range(8)]
    assert fit(rows, [1.0, 2, 3, 4, 5, 6, 7, 8]).coefficients == pytest.approx(tuple(range(1, 9)))
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([(1.0,) * 9], [1.0])


def test_errors_are_told_as_they_are_and_as_shares_of_what_was_seen() -> None:
    found = fit([(1.0,), (1.0,), (1.0,)], [1.0, 4.0, 4.0])
    assert found.coefficients == pytest.approx((3.0,))
    assert (found.rms, found.largest, found.relative) == pytest.approx((2**0.5, 2.0, (2 / 1 + 1 / 4 + 1 / 4) / 3))


@pytest.mark.parametrize("rows", [[], [()], [(1.0,), (2.0,)]])
def test_nothing_is_no_fit(rows: list[tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="nothing to fit"):
        fit(rows, [1.0] if rows else [])


def seen() -> Seen:
    told = Seen(spreads=[0.1])
    for tokens in (32, 100, 256, 400, 512, 1024):
        steps, pairs = -(-tokens // 256), tokens * (tokens + 1) / 2
        compute_s = 0.004 * steps + 2e-4 * tokens + 3e-8 * pairs
        intake_s, num_bytes = 0.002 + 1e-6 * tokens, 24_576 * tokens
        told.prompts.append(
            PromptSeen(
                tokens=tokens,
                steps=steps,
                compute_s=compute_s,
                intake_s=intake_s,
                ttft_s=intake_s + compute_s + 0.0035,
                num_bytes=num_bytes,
                transfer_s=0.001 * steps + num_bytes / 2e9,
            )
        )
    for batch, context in ((1, 64.0), (1, 512.0), (4, 128.0), (8, 64.0), (8, 300.0)):
        told.decodes.append(
            DecodeSeen(batch=batch, context=context, step_s=0.015 + 5e-4 * batch + 1e-7 * batch * context)
        )
    return told


def test_what_a_law_said_is_the_law_that_is_found() -> None:
    costs = calibrated(seen(), token_bytes=24_576, about={})
    (prefill,), (decode,) = costs.prefill.lines, costs.decode.lines
    assert (prefill.step_s, prefill.prefill_token_s, prefill.prefill_pair_s) == pytest.approx((0.004, 2e-4, 3e-8))
    assert (decode.step_s, decode.decode_s, decode.decode_pair_s) == pytest.approx((0.015, 5e-4, 1e-7))
    assert (costs.link.latency_s, costs.link.bytes_per_s) == pytest.approx((0.001, 2e9))
    assert (costs.intake_s, costs.intake_token_s, costs.frame_s) == pytest.approx((0.002, 1e-6, 0.0005))
    assert costs.noise == 0.1
    assert all(each["rms_s"] < 1e-9 for each in costs.residuals.values())


def test_a_link_that_was_not_seen_is_told_as_none() -> None:
    told = seen()
    assert "1.000 ms + bytes / 2.00 GB/s" in summary_lines(calibrated(told, token_bytes=4, about={}))[2]
    told.prompts = [dataclasses.replace(each, transfer_s=0.001 * each.steps) for each in told.prompts]
    assert "1.000 ms + nothing for bytes" in summary_lines(calibrated(told, token_bytes=4, about={}))[2]
    told.prompts = [dataclasses.replace(each, num_bytes=0) for each in told.prompts]
    assert "nothing travelled" in summary_lines(calibrated(told, token_bytes=4, about={}))[2]


def test_what_pods_take_from_one_another_is_found_again() -> None:
    told, (prefill, decode) = seen(), StepKind
    for overlap in (0.5, 0.9, 1.0):
        told.beside += [
            BesideSeen(mine=decode, other=prefill, alone_s=0.01, beside_s=0.01 * (1 + 0.3 * overlap), overlap=overlap),
            BesideSeen(mine=prefill, other=decode, alone_s=0.2, beside_s=0.2 + overlap * 0.02),
        ]
    sharing = calibrated(told, token_bytes=4, about={}).sharing
    assert sharing.decode_beside_prefill == pytest.approx(1.3)
    assert sharing.prefill_beside_decode == pytest.approx(1.08)
    assert sharing.decode_beside_decode == sharing.prefill_beside_prefill == 1.0


def test_where_chance_explains_it_nothing_is_taken() -> None:
    told, mine = seen(), StepKind.DECODE
    for beside_s in (0.0104, 0.0097, 0.0101, 0.0102, 0.0098):
        told.beside.append(BesideSeen(mine=mine, other=mine, alone_s=0.01, beside_s=beside_s))
    assert calibrated(told, token_bytes=4, about={}).sharing == SharingLaw()


def test_too_little_is_no_law() -> None:
    told = seen()
    del told.decodes[3:]
    with pytest.raises(ValueError, match="3 batches"):
        calibrated(told, token_bytes=4, about={})
