"""Where the largest logit of a row is, natively and in torch: the same, ties and NaN included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiled import ALL_BUILDS, native_backend

from pagewire.kernels import sampling
from pagewire.kernels.sampling_rows import SamplingRows


def greedy(count: int) -> SamplingRows:
    off, one = (0,) * count, (1.0,) * count
    return SamplingRows(
        temperature=(0.0,) * count, top_k=off, top_p=one, min_p=(0.0,) * count, typical_p=one, seed=off, index=off,
        position=off,
    )  # fmt: skip


@pytest.mark.parametrize("build", ALL_BUILDS)
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    num_rows=st.integers(1, 9),
    size=st.sampled_from([1, 15, 16, 17, 48, 50, 160, 1001, 1024]),
)
def test_the_first_of_the_largest(
    build: str, data: st.DataObject, dtype: torch.dtype, num_rows: int, size: int
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1 << 16)))
    logits = torch.randint(-5, data.draw(st.sampled_from([-4, 3, 1000])), (num_rows, size)).to(dtype)  # ties abound
    logits[torch.rand(num_rows, size) < data.draw(st.sampled_from([0.0, 0.5, 0.99]))] = -torch.inf
    logits[:, data.draw(st.integers(0, size - 1))] = data.draw(st.sampled_from([-7.0, 0.0, 5.0]))
    expected = [next(at for at, value in enumerate(row) if value == max(row)) for row in logits.tolist()]
    assert native_backend(build).sample(logits, greedy(num_rows)) == expected
    assert sampling.sample(logits, greedy(num_rows)) == expected


@pytest.mark.parametrize("build", ALL_BUILDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 17, 63])
def test_a_row_without_a_finite_maximum_is_told(build: str, dtype: torch.dtype, broken: float, place: int) -> None:
    logits = torch.full((3, 64), -torch.inf).to(dtype)
    logits[0, 5] = logits[2, 5] = 1.0
    logits[1, 20] = 2.0 if broken != -torch.inf else broken
    logits[1, place] = broken
    with pytest.raises(ValueError, match="row 1 of the logits has no finite maximum"):
        native_backend(build).sample(logits, greedy(3))
