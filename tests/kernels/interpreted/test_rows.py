"""RMSNorm and SwiGLU's product against float64, over sizes that fill no tile; what is not written holds NaN."""

from __future__ import annotations

import kernel_definition as definition
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.kernels.gpu.rms_norm import rms_norm
from pagewire.kernels.gpu.silu_and_mul import silu_and_mul
from pagewire.kernels.torch_backend import TorchBackend

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = (torch.float32, torch.float16)


def test_what_is_allocated_is_poisoned() -> None:
    assert bool(torch.empty(1000).isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (5, 64), (3, 576), (9, 100), (2, 4096), (0, 64)])
def test_rms_norm_adds_the_residual_first(dtype: torch.dtype, num_rows: int, size: int) -> None:
    x, residual = torch.randn(num_rows, size).to(dtype), torch.randn(num_rows, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    normed, total = rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(total, x + residual)
    definition.close(normed, definition.rms_norm(x + residual, weight, 1e-5))
    definition.close(normed, TorchBackend().rms_norm(x, weight, 1e-5, residual)[0].double())
    alone, same = rms_norm(x, weight, 1e-5)
    assert same is x
    definition.close(alone, definition.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 24, 128])
def test_rms_norm_of_heads_that_are_part_of_wider_rows(dtype: torch.dtype, head_dim: int) -> None:
    fused = torch.randn(7, 5 + 3 + 3, head_dim).to(dtype)
    weight = torch.randn(head_dim).to(dtype)
    for part in torch.split(fused, [5, 3, 3], dim=1):
        normed, _ = rms_norm(part, weight, 1e-6)
        assert normed.is_contiguous()
        definition.close(normed, definition.rms_norm(part, weight, 1e-6))


def test_rms_norm_of_rows_that_are_strided_in_every_axis() -> None:
    x, weight = torch.randn(6, 40, 10)[::2, ::4, ::2], torch.randn(5)
    definition.close(rms_norm(x, weight, 1e-5)[0], definition.rms_norm(x, weight, 1e-5))


@settings(max_examples=25, deadline=None)
@given(num_rows=st.integers(1, 40), size=st.integers(1, 300), scale=st.sampled_from([1e-4, 1.0, 1e4]))
def test_a_row_does_not_know_the_others(num_rows: int, size: int, scale: float) -> None:
    x, weight = torch.randn(num_rows, size) * scale, torch.randn(size)
    together, _ = rms_norm(x, weight, 1e-5)
    definition.close(together, definition.rms_norm(x, weight, 1e-5))
    assert torch.equal(together[-1:], rms_norm(x[-1:], weight, 1e-5)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (7, 24), (3, 1023), (2, 1536), (0, 24)])
def test_silu_and_mul(dtype: torch.dtype, num_rows: int, size: int) -> None:
    wide = (torch.randn(num_rows, 2 * size + 3) * 4).to(dtype)
    for gate_up in (wide[:, : 2 * size], wide[:, : 2 * size].contiguous()):
        out = silu_and_mul(gate_up)
        assert out.shape == (num_rows, size)
        definition.close(out, definition.silu_and_mul(gate_up))
        definition.close(out, TorchBackend().silu_and_mul(gate_up).double())
