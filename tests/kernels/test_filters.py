"""Temperature and filters leave what transformers' warpers leave, in their order, and what the definitions say.

The same logits go through both. Shows which tokens can be drawn and how likely each is; draws are in test_sampling.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from pagewire.kernels import sampling
from pagewire.kernels.sampling_rows import SamplingRows

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}


def rows(*each: dict[str, Any]) -> SamplingRows:
    columns = {name: tuple({**OFF, **one}[name] for one in each) for name in OFF}
    count = len(each)
    return SamplingRows(**columns, seed=tuple(range(count)), index=(0,) * count, position=(3,) * count)


def ours(logits: torch.Tensor, *each: dict[str, Any]) -> torch.Tensor:
    """Return the probabilities `[n, V]` that the filters leave."""
    asked = rows(*each)
    temperature = torch.tensor(asked.temperature, dtype=torch.float64)[:, None]
    values, ids = sampling.keep(logits.double() / temperature, asked)
    left = torch.full(logits.shape, -math.inf, dtype=torch.float64)
    for row in range(len(each)):
        kept = values[row] > -math.inf
        left[row, ids[row][kept]] = values[row][kept]
    return left.softmax(dim=-1)


def theirs(logits: torch.Tensor, asked: dict[str, Any]) -> torch.Tensor:
    one = {**OFF, **asked}
    warpers = LogitsProcessorList([TemperatureLogitsWarper(one["temperature"])])
    if one["top_k"]:
        warpers.append(TopKLogitsWarper(one["top_k"]))
    if one["top_p"] < 1.0:
        warpers.append(TopPLogitsWarper(one["top_p"]))
    if one["min_p"]:
        warpers.append(MinPLogitsWarper(one["min_p"]))
    if one["typical_p"] < 1.0:
        warpers.append(TypicalLogitsWarper(one["typical_p"]))
    scores: torch.Tensor = warpers(torch.zeros((1, 1), dtype=torch.int64), logits.double())  # type: ignore[arg-type]
    return scores.softmax(dim=-1)


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"top_k": 7},
    {"top_k": 5000},
    {"top_p": 0.35},
    {"top_p": 0.97},
    {"min_p": 0.08},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"temperature": 1.7, "top_k": 40, "top_p": 0.8, "min_p": 0.02, "typical_p": 0.7},
    {"temperature": 0.6, "top_p": 0.9, "typical_p": 0.5},
    {"top_k": 3, "typical_p": 0.4},
]


@pytest.mark.parametrize("vocab_size", [3, 97, 1000])
def test_each_filter_and_all_together_leave_what_transformers_leaves(vocab_size: int) -> None:
    torch.manual_seed(vocab_size)
    logits = torch.randn(len(CASES), vocab_size) * 3
    found = ours(logits, *CASES)
    for row, case in enumerate(CASES):
        expected = theirs(logits[row : row + 1], case)[0]
        assert torch.allclose(found[row], expected, atol=1e-12), case


@pytest.mark.parametrize("vocab_size", [97, 4096])
def test_a_mixed_batch_equals_each_row_alone_to_the_last_bit(vocab_size: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(len(CASES), vocab_size) * 3
    together = ours(logits, *CASES)
    drawn = sampling.sample(logits, rows(*CASES))
    for row, case in enumerate(CASES):
        alone = rows(case)
        alone = SamplingRows(
            **{**{name: getattr(alone, name) for name in OFF}, "seed": (row,), "index": (0,), "position": (3,)}
        )
        assert torch.equal(ours(logits[row : row + 1], case)[0], together[row]), case
        assert sampling.sample(logits[row : row + 1], alone) == [drawn[row]], case


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=12, unique=True),
    top_k=st.integers(0, 13),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_what_is_left_is_what_the_definitions_leave(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    """The definitions, token by token: the k largest; the smallest head of mass p; at least p of the largest."""
    left = sorted(range(len(logits)), key=lambda token: -logits[token])
    if top_k:
        left = left[:top_k]
    total, mass, head = sum(math.exp(logits[token]) for token in left), 0.0, list[int]()
    for token in left:
        if head and (mass >= top_p * total and top_p < 1.0):
            break
        head.append(token)
        mass += math.exp(logits[token])
    largest = logits[head[0]]
    left = [token for token in head if min_p == 0 or logits[token] >= largest + math.log(min_p)]
    probabilities = ours(torch.tensor([logits]), {"top_k": top_k, "top_p": top_p, "min_p": min_p})[0]
    assert probabilities.nonzero()[:, 0].tolist() == sorted(left)


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=12, unique=True),
    typical_p=st.floats(0.05, 0.99),
)
def test_typical_leaves_what_its_definition_leaves(logits: list[float], typical_p: float) -> None:
    """The tokens whose surprise is nearest the entropy, until they have the mass; equally near ones together."""
    total = math.log(sum(math.exp(each) for each in logits))
    surprise = [total - each for each in logits]
    entropy = sum(math.exp(-each) * each for each in surprise)
    order = sorted(range(len(logits)), key=lambda token: abs(surprise[token] - entropy))
    mass, left = 0.0, list[int]()
    for token in order:
        if mass >= typical_p:
            break
        left.append(token)
        mass += math.exp(-surprise[token])
    furthest = abs(surprise[left[-1]] - entropy)
    near = [abs(each - entropy) for each in surprise]
    assume(all(abs(each - furthest) > 1e-9 for token, each in enumerate(near) if token not in left))
    assume(abs(mass - math.exp(-surprise[left[-1]]) - typical_p) > 1e-9)
    probabilities = ours(torch.tensor([logits]), {"typical_p": typical_p})[0]
    assert probabilities.nonzero()[:, 0].tolist() == sorted(left)


def test_what_is_forbidden_is_never_drawn_whatever_the_filters() -> None:
    torch.manual_seed(2)
    logits = torch.randn(len(CASES), 50)
    logits[:, 10:] = -math.inf
    for position in range(20):
        asked = rows(*CASES)
        asked = SamplingRows(
            **{**{name: getattr(asked, name) for name in (*OFF, "seed", "index")}, "position": (position,) * len(CASES)}
        )
        assert max(sampling.sample(logits, asked)) < 10
