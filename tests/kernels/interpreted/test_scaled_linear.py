"""Products with a weight of codes, of few rows, of more and of many, against float64; unwritten memory is NaN.

Sizes fill no tile, and what lies beyond a row of x or of the weight is NaN.
"""

from __future__ import annotations

import kernel_definition as definition
import pytest
import torch
from kernel_definition import apart

from pagewire.kernels.gpu import scaled_linear
from pagewire.kernels.gpu.scaled_linear import MOST_ROWS, Tile
from pagewire.kernels.gpu.small_linear import normed_linear, small_linear
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.scaled_weight import ScaledWeight
from pagewire.kernels.torch_backend import TorchBackend
from pagewire.kernels.triton_backend import TritonBackend

pytestmark = pytest.mark.usefixtures("poisoned")

FEW, MANY = Processor((9, 0), 2), Processor((9, 0), 132)
DTYPES = (torch.float32, torch.float16)


def weight_of(count: int, size: int, dtype: torch.dtype) -> ScaledWeight:
    """Return a weight whose rows are of very different sizes, one of them nothing, with NaN between them."""
    weight = torch.randn(count, size) / size**0.5 * torch.logspace(-1, 1, count)[:, None]
    weight[count // 2] = 0
    made = ScaledWeight.of(weight.to(dtype))
    return ScaledWeight(apart(made.codes), made.scales, dtype)


def product(x: torch.Tensor, weight: ScaledWeight, bias: torch.Tensor | None) -> torch.Tensor:
    exact = weight.codes.double() * weight.scales.double()[:, None]
    return x.double() @ exact.T + (0.0 if bias is None else bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "size"), [(9, 48), (7, 1), (33, 1536), (24, 100), (5, 4100)])
@pytest.mark.parametrize(("num_rows", "with_bias"), [(1, True), (2, False), (4, True)])
def test_few_rows(dtype: torch.dtype, count: int, size: int, num_rows: int, with_bias: bool) -> None:
    x, weight = apart(torch.randn(num_rows, size).to(dtype)), weight_of(count, size, dtype)
    bias = torch.randn(count).to(dtype) if with_bias else None
    out = small_linear(x, weight, bias, FEW)
    assert out.dtype == dtype
    definition.close(out, product(x, weight, bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(("num_rows", "with_bias"), [(1, True), (3, False)])
def test_few_rows_behind_a_norm_and_before_a_gate(
    dtype: torch.dtype, is_gated: bool, num_rows: int, with_bias: bool
) -> None:
    weight = weight_of(34, 1536, dtype)
    x, residual = apart(torch.randn(num_rows, 1536).to(dtype)), apart(torch.randn(num_rows, 1536).to(dtype))
    norm, bias = (1 + torch.randn(1536) / 4).to(dtype), torch.randn(34).to(dtype) if with_bias else None
    out, total = normed_linear(x, residual, norm, 1e-5, weight, bias, FEW, is_gated=is_gated)
    assert torch.equal(total, x + residual)
    expected = product(definition.rms_norm(total, norm, 1e-5), weight, bias)
    definition.close(out, definition.silu_and_mul(expected) if is_gated else expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "count", "size", "processor"),
    [
        (5, 9, 48, FEW),
        (1, 70, 600, FEW),
        (17, 130, 300, FEW),
        (65, 200, 1030, FEW),
        (131, 140, 257, FEW),
        (6, 100, 2500, MANY),
        (70, 70, 1200, MANY),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_more_rows(
    dtype: torch.dtype, num_rows: int, count: int, size: int, processor: Processor, with_bias: bool
) -> None:
    """On a processor of many units the columns are shared between programs."""
    assert processor is FEW or Tile.choose(num_rows, count, size, processor.num_sms).splits > 1
    x, weight = apart(torch.randn(num_rows, size).to(dtype)), weight_of(count, size, dtype)
    bias = torch.randn(count).to(dtype) if with_bias else None
    out = scaled_linear.scaled_linear(x, weight, bias, processor)
    assert out.dtype == dtype
    definition.close(out, product(x, weight, bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "size"), [(3, 1), (5, 2100)])
def test_decoded_as_torch_does(dtype: torch.dtype, count: int, size: int) -> None:
    weight = weight_of(count, size, dtype)
    assert torch.equal(scaled_linear.decode(weight, overlaps=False), weight.decoded())


@pytest.mark.parametrize("num_rows", [0, 1, 4, 5, MOST_ROWS, MOST_ROWS + 1])
def test_a_backend_multiplies_any_number_of_rows(num_rows: int) -> None:
    weight, bias, norm = weight_of(18, 40, torch.float32), torch.randn(18), 1 + torch.randn(40) / 4
    x, backend, reference = torch.randn(num_rows, 40), TritonBackend(torch.device("cpu"), FEW), TorchBackend()
    torch.testing.assert_close(backend.linear(weight, bias)(x), reference.linear(weight, bias)(x))
    for is_gated in (False, True):
        found, expected = (
            each.normed_linear(norm, 1e-6, weight, bias, is_gated=is_gated)(x, x)[0] for each in (backend, reference)
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("num_rows", [5, 16, 17, 64, 65, 128, 129, 256])
@pytest.mark.parametrize(("count", "size"), [(6144, 4096), (4096, 14336), (960, 576), (28672, 4096), (16, 16)])
def test_shares_of_columns_keep_units_busy_and_none_is_empty(num_rows: int, count: int, size: int) -> None:
    tile = Tile.choose(num_rows, count, size, 132)
    share = -(-size // (tile.splits * tile.depth)) * tile.depth
    assert share * (tile.splits - 1) < size
    assert tile.splits == 1 or share >= 4 * tile.depth
    programs = -(-num_rows // tile.rows) * -(-count // tile.outputs) * tile.splits
    assert tile.splits == 1 or programs <= 2 * 132
    assert programs >= 132 or tile.splits == min(scaled_linear.MOST_SPLITS, max(1, size // (4 * tile.depth)))
