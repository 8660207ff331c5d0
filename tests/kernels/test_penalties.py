"""Penalties that are taken natively, off the tokens that were there alone, are the definition's to the last bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiled import BUILDS, native_backend

from pagewire.kernels.logit_edits import Counted, LogitEdits, Repetition, edit


@pytest.mark.parametrize("build", BUILDS)
@settings(max_examples=150, deadline=None)
@given(
    num_rows=st.integers(1, 9),
    size=st.integers(1, 300),
    width=st.integers(0, 200),
    few=st.integers(1, 300),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1 << 16),
)
def test_penalties_are_those_of_the_definition(
    build: str, num_rows: int, size: int, width: int, few: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = (torch.randn(num_rows, size) * 5).to(dtype)
    logits[torch.rand(logits.shape) < 0.1] = -torch.inf
    before = logits.clone()
    count = int(torch.randint(1, num_rows + 1, ()))

    def tokens() -> torch.Tensor:
        found = torch.randint(0, min(few, size), (count, width))
        return torch.where(torch.rand(found.shape) < 0.3, size, found)

    edits = LogitEdits(
        repetition=Repetition(rows=torch.randperm(num_rows)[:count], penalty=torch.rand(count) + 0.4, tokens=tokens()),
        counted=Counted(
            rows=torch.randperm(num_rows)[:count], presence=torch.randn(count), frequency=torch.randn(count),
            tokens=tokens(),
        ),
    )  # fmt: skip
    found = native_backend(build).edit_logits(logits, edits)
    assert found.dtype == torch.float32
    assert torch.equal(found, edit(logits, edits))
    assert torch.equal(logits, before)
