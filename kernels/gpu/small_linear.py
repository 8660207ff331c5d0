"""A few rows times a weight, with what precedes and follows such a product in a decoder: one pass over the weight.

    total[m, k] = x[m, k] + residual[m, k]                                   rounded; x itself without a residual
    given[m, k] = round(total[m, k] / sqrt(mean(total[m]^2) + eps)) * norm[k], rounded; total itself without a norm
    y[m, n]     = sum_k given[m, k] weight[n, k] + bias[n]                   summed in fp32, rounded once
                  the sum times scale[n] where the weight is codes (`scaled_weight.py`)
    out         = y, or silu(y[m, i]) * y[m, I + i] of `[M, I]` where it is gated, rounded as `silu_and_mul.py` does

So few rows take as long as the weight takes to be read, which ordinary units keep up with: up to `MOST_ROWS` each
number of rows is a kernel of its own. A program takes some rows of the weight, or pairs of a gate's and its up's, and
all of K: as many chunks as registers hold are on their way at any time, and the first of them are asked for before the
kernels that make x are done (`dependent_launch.py`). Each program norms x for itself, which costs less than a kernel
would; the first writes `total`, to memory of its own, since the others still read x and the residual.
The torch references are `TorchBackend.linear`, `rms_norm` and `silu_and_mul`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pagewire.kernels.coded_weight import CodedWeight
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.scaled_weight import ScaledWeight, Weight

MOST_ROWS = 4  # of x
VECTOR = tl.constexpr(8)  # elements of one access: 16 bytes in 16-bit dtypes, and 8 of codes, which x goes with
IN_FLIGHT = 64  # registers of a thread, at most, that hold weights


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program has of a weight at a time: `depth` chunks of `rows` x `lanes` x `VECTOR`, a thread to a lane."""

    rows: int
    lanes: int
    depth: int

    @classmethod
    def choose(cls, num_rows: int, size: int, itemsize: int, num_sms: int) -> Tile:
        """Return that of a weight `[num_rows, size]`.

        As many rows as leave nearly two programs for each multiprocessor, for x is read and normed once for all of
        them; of two lengths of chunks that which leaves the last fuller, and no deeper than fills as many rounds.
        Codes are no deeper than 16-bit numbers: from round to round each has a register of its own.
        """
        rows = next((rows for rows in (8, 4) if 10 * num_rows >= 19 * rows * num_sms), 2)
        lanes = min((128, 64), key=lambda lanes: -size % (lanes * VECTOR.value))
        chunks = triton.cdiv(size, lanes * VECTOR.value)
        deepest = max(1, IN_FLIGHT * 4 // (rows * VECTOR.value * max(itemsize, 2)))
        return cls(rows, lanes, triton.cdiv(chunks, triton.cdiv(chunks, deepest)))


def small_linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None, processor: Processor) -> torch.Tensor:
    """Return the product of x `[M, K]` and weight `[N, K]`, plus bias `[N]`: `[M, N]`; M is 1 to `MOST_ROWS`."""
    return _launch(x, None, None, 0.0, weight, bias, processor, is_gated=False)[0]


def normed_linear(
    x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, eps: float, weight: Weight,
    bias: torch.Tensor | None, processor: Processor, *, is_gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return (the same of norm(x + residual) * `norm`, x + residual); without a residual the second is x itself.

    Gated, with the gate's rows first in the weight, the first is silu(gate) * up `[M, N / 2]`.
    """
    return _launch(x, residual, norm, eps, weight, bias, processor, is_gated=is_gated)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor | None, eps: float, weight: Weight,
    bias: torch.Tensor | None, processor: Processor, *, is_gated: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    assert not isinstance(weight, CodedWeight), "products of codes are a CPU's"
    # The kernel reads codes as bytes: there is no zero of fp8 to put where it does not look.
    numbers, factors = (
        (weight.codes.view(torch.int8), weight.scales) if isinstance(weight, ScaledWeight) else (weight, None)
    )
    assert numbers.stride(1) == 1, "a copy made here would be read before it is there"
    x = _rows_together(x)
    residual = None if residual is None else _rows_together(residual)
    (num_rows, size), count = x.shape, weight.shape[0]
    outputs = count // 2 if is_gated else count
    tile = Tile.choose(count, size, numbers.element_size(), processor.num_sms)
    out = x.new_empty(num_rows, outputs)
    total = x if residual is None else x.new_empty(num_rows, size)
    _small_linear[(triton.cdiv(count, tile.rows),)](
        x, residual, norm, numbers, factors, bias, out, total, eps,
        x.stride(0), 0 if residual is None else residual.stride(0), numbers.stride(0),
        M=num_rows, K=size, WIDTH=triton.next_power_of_2(size), OUTPUTS=outputs,
        ROWS=tile.rows, LANES=tile.lanes, DEPTH=tile.depth, GATED=is_gated, OVERLAPS=processor.overlaps,
        num_warps=tile.lanes // 32, num_stages=1, launch_pdl=processor.overlaps,
    )  # fmt: skip
    return out, total


def _rows_together(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


@triton.jit
def _small_linear(
    x,  # [M, K], rows `x_stride` elements apart
    residual,  # [M, K], None where nothing is added
    norm,  # [K], None where nothing is normed
    weight,  # [OUTPUTS or 2 OUTPUTS, K], codes as bytes
    factors,  # [OUTPUTS or 2 OUTPUTS], None where the weight is no codes
    bias,  # [OUTPUTS or 2 OUTPUTS], None where there is none
    out,  # [M, OUTPUTS], contiguous
    total,  # [M, K], contiguous
    eps,
    x_stride,
    residual_stride,
    weight_stride,
    M: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,  # K, as a power of two
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    GATED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    CHUNK: tl.constexpr = LANES * VECTOR
    # [LANES, 1, VECTOR]: the last axis is summed by one thread, the first by threads together. In this order each
    # thread gets its lanes of all rows, and of x what they are multiplied by: nothing goes from thread to thread.
    at = tl.arange(0, LANES)[:, None, None] * VECTOR + tl.arange(0, VECTOR)[None, None, :]
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = _row_of(number, OUTPUTS, GATED)
    is_row = row < (2 * OUTPUTS if GATED else OUTPUTS)
    rows = weight + row.to(tl.int64)[None, :, None] * weight_stride  # [1, ROWS, 1]
    is_mine = is_row[None, :, None]

    weights, gains = (), ()  # DEPTH chunks of each
    for chunk in tl.static_range(DEPTH):
        weights += (_load_weights(rows, chunk * CHUNK + at, is_mine, K),)  # type: ignore[assignment]
        if norm is not None:
            gains += (_load_gains(norm, chunk * CHUNK + at, K),)  # type: ignore[assignment]
    shift, factor = tl.zeros([ROWS], tl.float32), 1.0
    if factors is not None:
        factor = tl.load(factors + row, is_row, other=0.0)
    if bias is not None:
        shift = tl.load(bias + row, is_row, other=0.0).to(tl.float32)
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()

    scales, sums = (), ()  # M of each
    for m in tl.static_range(M):
        scales += (_scale(x, residual, norm, total, m, x_stride, residual_stride, eps, K, WIDTH),)  # type: ignore[assignment]
        sums += (tl.zeros([LANES, ROWS], tl.float32),)  # type: ignore[assignment]
    for first in range(0, K, DEPTH * CHUNK):
        weights_after, gains_after = (), ()
        for chunk in tl.static_range(DEPTH):
            column = first + chunk * CHUNK + at
            sums_after = ()
            for m in tl.static_range(M):
                given = _load_total(x, residual, m * x_stride, m * residual_stride, column, K)  # [LANES, 1, VECTOR]
                if norm is not None:
                    given = _normed(given, scales[m], gains[chunk])
                products = _wide(weights[chunk], factors) * given.to(tl.float32)
                sums_after += (sums[m] + tl.sum(products, axis=2),)  # type: ignore[assignment]
            sums = sums_after
            weights_after += (_load_weights(rows, column + DEPTH * CHUNK, is_mine, K),)  # type: ignore[assignment]
            if norm is not None:
                gains_after += (_load_gains(norm, column + DEPTH * CHUNK, K),)  # type: ignore[assignment]
        weights, gains = weights_after, gains_after

    for m in tl.static_range(M):
        product = (tl.sum(sums[m], axis=0) * factor + shift).to(out.dtype.element_ty)  # [ROWS]
        if GATED:
            gate, up = tl.split(tl.reshape(product.to(tl.float32), [ROWS // 2, 2]))
            product = (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty)
            place = tl.program_id(0) * (ROWS // 2) + tl.arange(0, ROWS // 2)
            tl.store(out + m * OUTPUTS + place, product, place < OUTPUTS)
        else:
            tl.store(out + m * OUTPUTS + number, product, is_row)


@triton.jit
def _row_of(number, OUTPUTS: tl.constexpr, GATED: tl.constexpr):
    """Return the row of the weight that comes `number`th: of a gated one, a gate's and its up's take turns."""
    return number // 2 + number % 2 * OUTPUTS if GATED else number


@triton.jit
def _load_weights(rows, column, is_mine, K: tl.constexpr):
    # Read once: what is to stay in the first cache is x.
    return tl.load(rows + column, is_mine & (column < K), other=0, eviction_policy="evict_first")


@triton.jit
def _wide(weights, factors):
    """Return weights in fp32; codes, where there are factors, as they are."""
    if factors is not None:
        weights = weights.to(tl.float8e4nv, bitcast=True)
    return weights.to(tl.float32)


@triton.jit
def _load_gains(norm, column, K: tl.constexpr):
    return tl.load(norm + column, column < K, other=0.0)


@triton.jit
def _load_total(x, residual, x_start, residual_start, column, K: tl.constexpr):
    """Return x + residual of one row, in the dtype of x."""
    value = tl.load(x + x_start + column, column < K, other=0.0)
    if residual is not None:
        added = tl.load(residual + residual_start + column, column < K, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
    return value


@triton.jit
def _scale(
    x, residual, norm, total, m, x_stride, residual_stride, eps, K: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Return what row m is multiplied by when it is normed; the first program keeps its sum with the residual."""
    if norm is None:
        return 1.0
    column = tl.arange(0, WIDTH)
    value = _load_total(x, residual, m * x_stride, m * residual_stride, column, K)
    if residual is not None:
        tl.store(total + m * K + column, value, (column < K) & (tl.program_id(0) == 0))
    wide = value.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide) / K + eps)


@triton.jit
def _normed(value, scale, gain):
    """Return one row normed, rounded where `rms_norm.py` rounds."""
    rounded = (value.to(tl.float32) * scale).to(value.dtype).to(tl.float32)
    return (rounded * gain.to(tl.float32)).to(value.dtype)
