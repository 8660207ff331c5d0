"""Tokens that are drawn natively, with nothing sorted and hardly a logarithm, are those that the definition draws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiled import ALL_BUILDS, native_backend

from pagewire.kernels import sampling
from pagewire.kernels.sampling_rows import SamplingRows

COLUMNS = st.fixed_dictionaries({
    "temperature": st.sampled_from([0.0, 0.001, 0.3, 0.8, 1.0, 5.0]),
    "top_k": st.sampled_from([0, 0, 1, 2, 7, 40, 3000, 10**6]),
    "top_p": st.sampled_from([1.0, 1.0, 1e-6, 0.1, 0.5, 0.9, 0.999]),
    "min_p": st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]),
    "typical_p": st.sampled_from([1.0, 1.0, 0.05, 0.7, 0.999]),
    "seed": st.integers(0, (1 << 63) - 1),
    "index": st.integers(0, 3),
    "position": st.integers(0, 1 << 20),
})  # fmt: skip

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "index": 0, "position": 0}


def rows(each: list[dict[str, float]]) -> SamplingRows:
    return SamplingRows(**{name: tuple(row[name] for row in each) for name in each[0]})  # type: ignore[arg-type]


def made_logits(kind: str, num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return logits `[n, V]`: `flat`, `usual`, `peaked`, or with many that are equal."""
    if kind == "ties":
        return torch.randint(-6, 3, (num_rows, size)).to(dtype)
    return (torch.randn(num_rows, size) * {"flat": 0.01, "usual": 3.0, "peaked": 12.0}[kind]).to(dtype)


@pytest.mark.parametrize("build", ALL_BUILDS)
@settings(max_examples=150, deadline=None)
@given(
    each=st.lists(COLUMNS, min_size=1, max_size=5),
    kind=st.sampled_from(["flat", "usual", "peaked", "ties"]),
    size=st.sampled_from([1, 7, 16, 50, 160, 2048, 2049, 2064, 8191]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    barred=st.sampled_from([0.0, 0.3, 0.99]),
    torch_seed=st.integers(0, 1 << 16),
)
def test_native_tokens_are_those_of_the_definition(
    build: str, each: list[dict[str, float]], kind: str, size: int, dtype: torch.dtype, barred: float, torch_seed: int
) -> None:
    torch.manual_seed(torch_seed)
    logits = made_logits(kind, len(each), size, dtype)
    logits[torch.rand(logits.shape) < barred] = -torch.inf
    logits[:, size // 3] = 1.0
    assert native_backend(build).sample(logits, rows(each)) == sampling.sample(logits, rows(each))


@pytest.mark.parametrize("build", ALL_BUILDS)
def test_a_row_does_not_depend_on_its_neighbours(build: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 4096) * 4
    common = {**OFF, "position": 9}
    each = [
        {**common, "temperature": 0.7, "top_p": 0.95, "seed": 1},
        {**common, "temperature": 0.0, "top_p": 1.0, "seed": 2},
        {**common, "temperature": 1.0, "top_p": 1.0, "seed": 3},
        {**common, "temperature": 1.0, "top_p": 0.5, "seed": 4, "top_k": 100},
        {**common, "temperature": 1.0, "top_p": 1.0, "seed": 5, "min_p": 0.1},
        {**common, "temperature": 9.0, "top_p": 0.99, "seed": 6, "typical_p": 0.4},
    ]
    backend = native_backend(build)
    alone = [backend.sample(logits[row : row + 1], rows([columns]))[0] for row, columns in enumerate(each)]
    assert backend.sample(logits, rows(each)) == alone
    assert backend.sample(logits.flip(0), rows(each[::-1])) == alone[::-1]


@pytest.mark.parametrize("build", ALL_BUILDS)
@pytest.mark.parametrize("typical_p", [1e-9, 0.3, 0.999999, 1 - 2**-53])
@pytest.mark.parametrize("far", [-5.0, -300.0, -680.0, -5000.0, -torch.inf])
def test_the_typical_filter_is_not_misled_by_what_is_far_away(build: str, typical_p: float, far: float) -> None:
    """However far the furthest that weigh anything are, and wherever the bound is."""
    torch.manual_seed(0)
    logits = torch.randn(8, 5000) * 2
    logits[:, ::11] = far
    asked = rows([{**OFF, "typical_p": typical_p, "seed": seed} for seed in range(8)])
    assert native_backend(build).sample(logits, asked) == sampling.sample(logits, asked)


@pytest.mark.parametrize("build", ALL_BUILDS)
def test_frequencies_follow_what_the_typical_filter_leaves(build: str) -> None:
    """Surprises are 0.69, 1.2, 1.9 and 3.0, 1.14 are expected: the second, then the first, are the nearest."""
    logits = torch.full((4000, 32), -torch.inf)
    logits[:, :4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    asked = rows([{**OFF, "typical_p": 0.7, "seed": seed} for seed in range(4000)])
    tokens = native_backend(build).sample(logits, asked)
    shares = [tokens.count(token) / 4000 for token in range(4)]
    assert shares == pytest.approx([0.5 / 0.8, 0.3 / 0.8, 0.0, 0.0], abs=0.03)


@pytest.mark.parametrize("build", ALL_BUILDS)
def test_frequencies_follow_what_the_filters_leave(build: str) -> None:
    logits = torch.full((4000, 32), -torch.inf)
    logits[:, :4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    asked = rows([{**OFF, "top_p": 0.9, "seed": seed} for seed in range(4000)])
    tokens = native_backend(build).sample(logits, asked)
    shares = [tokens.count(token) / 4000 for token in range(4)]
    assert shares == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0], abs=0.03)
