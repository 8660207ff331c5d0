"""Edits on the device are those of `logit_edits.edit`, bit for bit, each alone and all together."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch

from pagewire.kernels import logit_edits as reference
from pagewire.kernels.gpu import logit_edits as gpu
from pagewire.kernels.logit_edits import Allowed, Banned, Bias, Counted, LogitEdits, Masked, Repetition

NUM_ROWS = 7


@pytest.fixture(autouse=True)
def small_tiles() -> Iterator[None]:
    with mock.patch.multiple(gpu, TILE=32):
        yield


def some_rows(count: int) -> torch.Tensor:
    return torch.randperm(NUM_ROWS)[:count]


def token_lists(count: int, length: int, vocab_size: int) -> torch.Tensor:
    """Return lists with repeated tokens, padded as the engine pads them."""
    tokens = torch.randint(0, min(vocab_size, 20), (count, length))
    for row in range(count):
        tokens[row, length - row * length // 4 :] = vocab_size
    return tokens


def pairs(vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = torch.randperm(NUM_ROWS * vocab_size)[:60]
    return chosen // vocab_size, chosen % vocab_size


def edits_of(vocab_size: int, list_length: int) -> LogitEdits:
    rows, ids = pairs(vocab_size)
    places = torch.tensor([0] * 30 + [1] * 2)
    return LogitEdits(
        bias=Bias(rows=rows, ids=ids, values=torch.randn(len(rows)) * 3),
        repetition=Repetition(
            rows=some_rows(3), penalty=torch.tensor([1.7, 0.6, 1.1]), tokens=token_lists(3, list_length, vocab_size)
        ),
        counted=Counted(
            rows=some_rows(3), presence=torch.tensor([0.7, 0.0, -1.3]), frequency=torch.tensor([0.0, 0.3, -0.11]),
            tokens=token_lists(3, list_length, vocab_size),
        ),
        banned=(Banned(rows=rows[:9], ids=ids[:9]), Banned(rows=rows[:0], ids=ids[:0])),
        allowed=Allowed(rows=some_rows(2), places=places, ids=torch.randint(0, vocab_size, places.shape)),
        masked=Masked(
            rows=some_rows(2), bits=torch.randint(-(2**31), 2**31, (2, -(-vocab_size // 32)), dtype=torch.int32)
        ),
    )  # fmt: skip


@pytest.mark.parametrize("vocab_size", [31, 32, 41, 333])
@pytest.mark.parametrize("list_length", [0, 5, 70])
@pytest.mark.parametrize("seed", range(3))
def test_edits_are_those_of_the_reference(vocab_size: int, list_length: int, seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(NUM_ROWS, vocab_size)
    before = logits.clone()
    every = edits_of(vocab_size, list_length)
    alone = [
        LogitEdits(bias=every.bias), LogitEdits(repetition=every.repetition), LogitEdits(counted=every.counted),
        LogitEdits(banned=every.banned), LogitEdits(allowed=every.allowed), LogitEdits(masked=every.masked),
    ]  # fmt: skip
    for edits in (every, *alone, LogitEdits()):
        assert torch.equal(gpu.edit(logits, edits), reference.edit(logits, edits)), edits
    assert torch.equal(logits, before)


def test_rows_may_be_strided() -> None:
    torch.manual_seed(0)
    logits = torch.randn(NUM_ROWS, 50)[:, :41]
    edits = edits_of(41, 9)
    assert torch.equal(gpu.edit(logits, edits), reference.edit(logits, edits))
