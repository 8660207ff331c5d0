"""Sampling is a pure function of (logits, seed, index, position), and draws what its parameters say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pagewire.kernels import sampling
from pagewire.kernels.sampling_rows import SamplingRows


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


PINNED = [57, 62, 57, 61, 51, 63, 60, 63]
PINNED_NOISE = [-0.31104184624208014, -0.0940003583932189]


def rows(count: int, **columns: Any) -> SamplingRows:
    defaults: dict[str, Any] = {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
        "seed": 7, "index": 0, "position": 0,
    }  # fmt: skip
    values = {**defaults, **columns}
    return SamplingRows(**{k: tuple(v) if isinstance(v, (list, range)) else (v,) * count for k, v in values.items()})


def frequencies(probabilities: list[float], count: int = 2_000, **columns: Any) -> list[float]:
    """Return how often each token is drawn over `count` positions."""
    logits = torch.tensor(probabilities).log()
    drawn = [sampling.sample(logits[None], rows(1, position=position, **columns))[0] for position in range(count)]
    return [drawn.count(token) / len(drawn) for token in range(len(probabilities))]


def test_greedy_is_argmax() -> None:
    logits = torch.randn(4, 50)
    assert sampling.sample(logits, rows(4, temperature=0.0)) == logits.argmax(-1).tolist()
    assert sampling.sample(logits, rows(4, top_k=1)) == logits.argmax(-1).tolist()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(6, 300)
    seeds = [1, 2, 3, -4, 2**63 - 1, -(2**63)]
    together = sampling.sample(logits, rows(6, seed=seeds, top_p=0.9, min_p=0.01))
    alone = [sampling.sample(logits[i : i + 1], rows(1, seed=seeds[i], top_p=0.9, min_p=0.01))[0] for i in range(6)]
    assert together == alone
    backwards = sampling.sample(logits.flip(0), rows(6, seed=seeds[::-1], top_p=0.9, min_p=0.01))
    assert backwards[::-1] == together


def test_tokens_are_pinned() -> None:
    """Another process, version or machine must draw the same: these values are part of the contract."""
    logits = torch.arange(64).float() / 16
    drawn = [sampling.sample(logits[None], rows(1, seed=42, index=1, position=p))[0] for p in range(8)]
    assert drawn == PINNED
    assert sampling.gumbel(42, 1, 0, torch.arange(2)).tolist() == pytest.approx(PINNED_NOISE, abs=1e-12)


def test_seed_index_and_position_each_matter() -> None:
    logits = torch.zeros(1, 1 << 16)
    base = sampling.sample(logits, rows(1))
    assert sampling.sample(logits, rows(1)) == base
    for change in ({"seed": 8}, {"index": 1}, {"position": 1}):
        assert sampling.sample(logits, rows(1, **change)) != base


def test_noise_is_standard_gumbel() -> None:
    noise = sampling.gumbel(3, 0, 5, torch.arange(200_000))
    assert bool(noise.isfinite().all())
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_frequencies_follow_the_distribution() -> None:
    assert frequencies([0.5, 0.3, 0.15, 0.05]) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.04)


def test_temperature_sharpens() -> None:
    squared = [0.25, 0.09, 0.0225, 0.0025]
    expected = [p / sum(squared) for p in squared]
    assert frequencies([0.5, 0.3, 0.15, 0.05], temperature=0.5) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ({"top_k": 2}, 2),
        ({"top_k": 4}, 4),
        ({"top_k": 9}, 4),
        ({"top_p": 0.5}, 1),
        ({"top_p": 0.51}, 2),
        ({"top_p": 0.97}, 4),
        ({"top_p": 1e-9}, 1),
        ({"min_p": 0.29}, 3),
        ({"min_p": 0.61}, 1),
        ({"min_p": 1.0}, 1),
        ({"top_k": 3, "top_p": 0.84}, 2),  # of what top-k left: 0.53, 0.84, 1
        ({"top_p": 0.9, "min_p": 0.5}, 2),
    ],
)
def test_filters_keep_what_they_say(columns: dict[str, Any], kept: int) -> None:
    probabilities = [0.5, 0.3, 0.15, 0.05]
    found = frequencies(probabilities, **columns)
    expected = [p / sum(probabilities[:kept]) if i < kept else 0.0 for i, p in enumerate(probabilities)]
    assert found == pytest.approx(expected, abs=0.05)
    assert all(found[token] == 0.0 for token in range(kept, 4))


def test_ties_with_the_last_of_top_k_stay() -> None:
    found = frequencies([0.4, 0.2, 0.2, 0.2], top_k=2)
    assert all(share > 0.1 for share in found)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_without_a_distribution_is_an_error(bad: float) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = bad
    with pytest.raises(ValueError, match="row 1"):
        sampling.sample(logits, rows(2, temperature=0.0))
