"""Products of a few rows, with the norm before and the gate behind them, against float64; unwritten memory is NaN.

Sizes fill no tile, and what lies beyond a row of x or of the weight is NaN.
"""

from __future__ import annotations

import kernel_definition as definition
import pytest
import torch
from kernel_definition import apart

from pagewire.kernels.gpu.small_linear import MOST_ROWS, Tile, normed_linear, small_linear
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.torch_backend import TorchBackend

pytestmark = pytest.mark.usefixtures("poisoned")

FEW = Processor((9, 0), 2)
DTYPES = (torch.float32, torch.float16)
SIZES = [(9, 48), (7, 1), (33, 1536), (24, 100), (5, 4100)]  # N and K: odd, less than a chunk, several rounds of them


def weight_of(count: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return apart(torch.randn(count, size).div(size**0.5).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "size"), SIZES)
@pytest.mark.parametrize(("num_rows", "with_bias"), [(1, True), (2, False), (3, False), (MOST_ROWS, True)])
def test_products(dtype: torch.dtype, count: int, size: int, num_rows: int, with_bias: bool) -> None:
    x, weight = apart(torch.randn(num_rows, size).to(dtype)), weight_of(count, size, dtype)
    bias = torch.randn(count).to(dtype) if with_bias else None
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    out = small_linear(x, weight, bias, FEW)
    assert out.dtype == dtype
    definition.close(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "size"), [(18, 48), (6, 1), (34, 1536), (24, 100), (6, 4100)])
@pytest.mark.parametrize(("num_rows", "with_bias"), [(1, False), (3, True)])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("is_gated", [False, True])
def test_normed_products(
    dtype: torch.dtype, count: int, size: int, num_rows: int, with_residual: bool, with_bias: bool, is_gated: bool
) -> None:
    """Rounded where the ops round that it is made of: their sum with the residual is equal."""
    x, weight = apart(torch.randn(num_rows, size).to(dtype)), weight_of(count, size, dtype)
    residual = apart(torch.randn(num_rows, size).to(dtype)) if with_residual else None
    norm, bias = (1 + torch.randn(size) / 4).to(dtype), torch.randn(count).to(dtype) if with_bias else None
    given = [each for each in (x, residual) if each is not None]
    before = [each.clone() for each in given]
    out, total = normed_linear(x, residual, norm, 1e-5, weight, bias, FEW, is_gated=is_gated)

    torch_ops = TorchBackend()
    normed, summed = torch_ops.rms_norm(x, norm, 1e-5, residual)
    composed = torch_ops.linear(weight, bias)(normed)
    product = definition.rms_norm(summed, norm, 1e-5) @ weight.double().T + (0.0 if bias is None else bias.double())
    assert torch.equal(total, summed)
    assert residual is not None or total is x
    assert all(map(torch.equal, given, before)), "what the other programs still read"
    definition.close(out, definition.silu_and_mul(product) if is_gated else product)
    definition.close(out, torch_ops.silu_and_mul(composed) if is_gated else composed)


@pytest.mark.parametrize("size", [1, 48, 576, 1024, 1536, 3072, 8960, 14336])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("count", [9, 1024, 4096, 151936])
def test_a_tile_leaves_no_multiprocessor_idle(size: int, itemsize: int, count: int) -> None:
    tile = Tile.choose(count, size, itemsize, 132)
    assert tile.rows == 2 or count / tile.rows >= 1.9 * 132
    assert tile.depth == 1 or tile.depth * tile.rows * 8 * itemsize <= 4 * 64, "registers"
    assert (tile.depth - 1) * tile.lanes * 8 < size, "no chunk of nothing in the first round"
