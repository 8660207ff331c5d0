"""Tokens drawn by the kernels are the reference sampler's, token for token, and follow the distribution they should."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pagewire.kernels import sampling as reference
from pagewire.kernels.gpu import cuts
from pagewire.kernels.gpu import sampling as gpu
from pagewire.kernels.sampling_rows import SamplingRows

OFF: dict[str, Any] = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "seed": 7, "index": 0, "position": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_tiles() -> Iterator[None]:
    """Have rows of a few hundred logits take several tiles, of several parts."""
    torch.manual_seed(0)
    with (
        mock.patch.multiple(gpu, TILE=64, PROGRAMS=32),
        mock.patch.multiple(cuts, LIST_TILE=32, BINS=64),
    ):
        yield


def rows(*each: dict[str, Any]) -> SamplingRows:
    return SamplingRows(**{name: tuple({**OFF, **one}[name] for one in each) for name in OFF})


def any_rows(count: int, chance: random.Random) -> SamplingRows:
    return rows(
        *(
            {
                "temperature": chance.choice([0.0, 0.05, 0.3, 1.0, 1.7, 100.0]),
                "top_k": chance.choice([0, 0, 1, 2, 7, 50, 10**6]),
                "top_p": chance.choice([1.0, 1e-9, 0.2, 0.9, 0.99, 1 - 1e-12]),
                "min_p": chance.choice([0.0, 0.0, 0.05, 0.3, 1.0]),
                "typical_p": chance.choice([1.0, 1.0, 1.0, 0.5]),
                "seed": chance.randrange(-(2**63), 2**63),
                "index": chance.randrange(5),
                "position": chance.randrange(10**6),
            }
            for _ in range(count)
        )
    )


@pytest.mark.parametrize("vocab_size", [3, 300])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "many-ties", "peaked", "flat"])
def test_tokens_are_those_of_the_reference(vocab_size: int, kind: str) -> None:
    """Every filter alone and with the others, greedy rows among them, over logits with and without ties and -inf."""
    logits = torch.randn(16, vocab_size) * {"peaked": 30.0, "flat": 1e-3}.get(kind, 3.0)
    if kind == "bf16":
        logits = logits.bfloat16().float()
    if kind == "many-ties":
        logits = logits.round()  # of both signs of zero, too
    logits[5, 1::2] = -torch.inf
    logits[6, 1:] = -torch.inf
    asked = any_rows(16, random.Random(vocab_size))
    assert gpu.sample(logits, asked).tolist() == reference.sample(logits, asked)


@settings(max_examples=25, deadline=None)
@given(
    logits=st.lists(st.floats(-9, 9, width=16), min_size=2, max_size=80),
    top_k=st.integers(0, 81),
    top_p=st.floats(1e-3, 1.0),
    min_p=st.floats(0.0, 1.0),
    temperature=st.floats(0.01, 100.0),
)
def test_whatever_the_filters_tokens_are_those_of_the_reference(
    logits: list[float], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    asked = rows(
        *({"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": n} for n in range(2))
    )
    row = torch.tensor([logits] * 2)
    assert gpu.sample(row, asked).tolist() == reference.sample(row, asked)


def test_a_row_does_not_depend_on_its_neighbours_nor_on_tiles() -> None:
    """Every way to cut rows into parts and tiles draws the same; so do strided rows."""
    logits = torch.randn(6, 300) * 3
    asked = any_rows(6, random.Random(1))
    expected = gpu.sample(logits, asked).tolist()
    for tile, programs in ((32, 1), (512, 1000)):
        with mock.patch.multiple(gpu, TILE=tile, PROGRAMS=programs):
            assert gpu.sample(logits, asked).tolist() == expected
    alone = [gpu.sample(logits[row : row + 1], asked.take([row])).tolist()[0] for row in range(6)]
    assert alone == expected
    assert gpu.sample(torch.cat((logits, logits), dim=1)[:, :300], asked).tolist() == expected


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.zeros(3, 200)
    logits[0, [70, 150]], logits[1, 199], logits[2, 0] = 1.0, 1.0, -1.0
    assert gpu.sample(logits, rows(*[{"temperature": 0.0}] * 3)).tolist() == [70, 199, 1]


@pytest.mark.parametrize("asked", [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"typical_p": 0.5}])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_distribution_has_no_token(asked: dict[str, Any], bad: float) -> None:
    logits = torch.randn(3, 100)
    logits[1, 40] = bad
    if bad == -math.inf:
        logits[1] = bad
    tokens = gpu.sample(logits, rows(asked, asked, asked))
    assert (tokens == gpu.NO_TOKEN).tolist() == [False, True, False]
    assert tokens.dtype is torch.int64


def test_no_rows_have_no_tokens() -> None:
    assert gpu.sample(torch.empty(0, 10), rows()).shape == (0,)


def test_a_screened_tile_is_not_computed_and_loses_nothing() -> None:
    """With a good token early, no later tile's bound reaches it; with it late, all the same."""
    for place in (3, 900):
        logits = torch.randn(1, 1000)
        logits[0, place] = 60.0
        asked = rows(*[{"seed": seed} for seed in range(8)])
        with mock.patch.multiple(gpu, PROGRAMS=1):
            assert gpu.sample(logits.expand(8, -1), asked).tolist() == [place] * 8


@triton.jit  # type: ignore[untyped-decorator]
def _noises(bits, exact, bound, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    some = tl.load(bits + at).to(tl.uint64)
    tl.store(exact + at, gpu._noise(some))
    tl.store(bound + at, gpu._most_noise(some))


def test_the_screen_is_above_the_noise_and_near_it() -> None:
    """Over random bits, and those of the least and the most noise there is."""
    edges = [0, 1, 2**20 - 1, 2**20, 2**52 - 2**20 - 1, 2**52 - 2**20, 2**52 - 2, 2**52 - 1]
    steps = [2**52 - 2**power for power in range(20, 52)] + [2**power for power in range(52)]
    bits = torch.cat((torch.tensor(edges + steps), torch.randint(0, 2**52, (8192 - len(edges + steps),))))
    exact, bound = torch.empty(8192, dtype=torch.float64), torch.empty(8192)
    _noises[(1,)](bits, exact, bound, SIZE=8192)
    assert torch.allclose(exact, -(-((bits.double() + 0.5) * 2.0**-52).log()).log(), rtol=1e-14)
    assert bool((bound.double() > exact + 1e-5).all())
    usual = (exact > -3.0) & (exact < 10.0)
    assert int(usual.sum()) > 8000
    assert bool((bound.double() < exact + 1e-2)[usual].all())


@pytest.mark.parametrize(
    ("asked", "kept"),
    [({}, 6), ({"temperature": 0.5, "top_k": 3}, 3), ({"top_p": 0.9}, 4), ({"min_p": 0.2}, 4)],
)
def test_draws_follow_the_distribution(asked: dict[str, Any], kept: int) -> None:
    """Chi-square over positions; seeds are fixed, so this either always passes or never."""
    probabilities = torch.tensor([0.4, 0.3, 0.13, 0.1, 0.04, 0.03])
    count = 200
    columns = [{**asked, "position": position} for position in range(count)]
    logits = probabilities.log().expand(count, -1)
    with mock.patch.multiple(gpu, TILE=8):
        drawn = gpu.sample(logits, rows(*columns)).bincount(minlength=6)
    expected = probabilities.double() ** (1 / asked.get("temperature", 1.0))
    expected[kept:] = 0
    expected *= count / expected.sum()
    assert int(drawn[kept:].sum()) == 0
    assert stats.chisquare(drawn[:kept].double(), expected[:kept]).pvalue > 0.01
