"""The columns that a device reads hold what their rows say, and greedy rows behind them."""

from __future__ import annotations

import math
from unittest import mock

import torch

from pagewire.core.sampling import MAX_SEED, SamplingParams
from pagewire.engine.draw_rows import rows_of
from pagewire.engine.step import Draw
from pagewire.kernels.sampling_columns import COLUMNS, SamplingColumns

SAMPLINGS = (
    SamplingParams(max_tokens=4, temperature=0.7, top_k=5, top_p=0.9, min_p=0.25, seed=MAX_SEED),
    SamplingParams(max_tokens=4, temperature=0.0, seed=0),
)


def filled(num_columns: int, samplings: tuple[SamplingParams, ...]) -> SamplingColumns:
    columns = SamplingColumns.view(torch.zeros(COLUMNS, num_columns, dtype=torch.int64))
    columns.fill(rows_of([Draw(sampling=each, index=at, position=7 + at) for at, each in enumerate(samplings)]))
    return columns


def test_columns_hold_their_rows_to_the_last_bit_and_greedy_ones_behind_them() -> None:
    columns = filled(3, SAMPLINGS)
    assert columns.floats.tolist() == [[0.7, 0.0, 0.0], [0.9, 1.0, 1.0], [math.log(0.25), -math.inf, -math.inf]]
    assert columns.integers.tolist() == [[5, 0, 0], [MAX_SEED, 0, 0], [0, 1, 0], [7, 8, 0]]
    assert filled(2, ()).floats.tolist() == [[0.0, 0.0], [1.0, 1.0], [-math.inf, -math.inf]]


def test_numbers_are_not_read_one_by_one() -> None:
    with mock.patch.object(torch, "tensor", wraps=torch.tensor) as tensor:
        filled(2, SAMPLINGS)
    assert all(len(call.args[0][0]) == 1 for call in tensor.call_args_list), "an array reads them in half the time"
