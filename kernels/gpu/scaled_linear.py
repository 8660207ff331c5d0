"""Rows times a weight of codes (`scaled_weight.py`), which is half the bytes to read; and such a weight decoded.

    y[m, n] = scale[n] * sum_k x[m, k] code[n, k] + bias[n]           summed in fp32, rounded once

Codes are exact in 16 bits, so nothing is rounded on its way into the sum. The weight is the first operand of a matrix
product, whose rows come by 64 and which may lie in registers, where codes are converted; x is the second, of as few
as 16. Where the weight has fewer tiles than keep a GPU busy, programs share its columns, and a second kernel adds up
what they summed, in order.

Beyond `MOST_ROWS` of x a product takes longer than a copy of its weight does: `decode` makes the copy, for cuBLAS.
The torch reference is `TorchBackend.linear`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagewire.kernels.gpu.dependent_launch import wait_for_earlier
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.scaled_weight import ScaledWeight

MOST_ROWS = 256  # of x
MOST_SPLITS = 16  # each is a load of its own where sums are added up
LEAST_ROUNDS = 4  # of a share of columns: what is on its way takes three of them to come
SUMMED, DECODED = 512, 2048  # elements of a program


@dataclass(frozen=True, slots=True)
class Tile:
    """`outputs` of the weight times `rows` of x, `depth` columns a round; `splits` programs share all columns."""

    outputs: int
    rows: int
    depth: int
    splits: int

    @classmethod
    def choose(cls, num_rows: int, count: int, size: int, num_sms: int) -> Tile:
        """Return that of x `[num_rows, size]` and a weight `[count, size]`: two programs to a multiprocessor."""
        rows = min(128, max(16, triton.next_power_of_2(num_rows)))
        outputs, depth = (128, 64) if rows == 128 else (64, 128)
        tiles = triton.cdiv(count, outputs) * triton.cdiv(num_rows, rows)
        splits = min(MOST_SPLITS, 2 * num_sms // tiles, size // (LEAST_ROUNDS * depth))
        return cls(outputs, rows, depth, max(1, splits))


def scaled_linear(
    x: torch.Tensor, weight: ScaledWeight, bias: torch.Tensor | None, processor: Processor
) -> torch.Tensor:
    """Return the product of x `[M, K]` and weight `[N, K]`, plus bias `[N]`: `[M, N]`; rows of x may lie apart."""
    x = x if x.stride(1) == 1 else x.contiguous()
    (num_rows, size), count = x.shape, weight.shape[0]
    tile, overlaps = Tile.choose(num_rows, count, size, processor.num_sms), processor.overlaps
    out = x.new_empty(num_rows, count)
    parts = None if tile.splits == 1 else x.new_empty(tile.splits, num_rows, count, dtype=torch.float32)
    _scaled_linear[(triton.cdiv(num_rows, tile.rows), triton.cdiv(count, tile.outputs), tile.splits)](
        x, weight.codes.view(torch.int8), weight.scales, bias, out, parts, num_rows, x.stride(0),
        weight.codes.stride(0), 0 if parts is None else parts.stride(0), SIZE=size, COUNT=count,
        SHARE=triton.cdiv(size, tile.splits * tile.depth) * tile.depth, OUTPUTS=tile.outputs, ROWS=tile.rows,
        DEPTH=tile.depth, STAGES=4 if tile.rows <= 32 else 3, OVERLAPS=overlaps, num_warps=tile.outputs // 16,
        launch_pdl=overlaps,
    )  # fmt: skip
    if parts is not None:
        _sum_parts[(num_rows, triton.cdiv(count, SUMMED))](
            parts, weight.scales, bias, out, parts.stride(0), COUNT=count, SPLITS=tile.splits, TILE=SUMMED,
            OVERLAPS=overlaps, num_warps=4, launch_pdl=overlaps,
        )  # fmt: skip
    return out


def decode(weight: ScaledWeight, *, overlaps: bool) -> torch.Tensor:
    """Return what `weight.decoded` does: `[N, K]`; `overlaps` is that of `Processor`."""
    count, size = weight.shape
    out = torch.empty(count, size, dtype=weight.dtype, device=weight.codes.device)
    _decode[(count, triton.cdiv(size, DECODED))](
        weight.codes.view(torch.int8), weight.scales, out, weight.codes.stride(0), SIZE=size, TILE=DECODED,
        OVERLAPS=overlaps, num_warps=4, launch_pdl=overlaps,
    )  # fmt: skip
    return out


@triton.jit
def _scaled_linear(
    x,  # [M, SIZE], rows `x_stride` elements apart
    codes,  # [COUNT, SIZE], as bytes: there is no zero of fp8 to put where nothing is read
    scales,  # [COUNT]
    bias,  # [COUNT], None where there is none
    out,  # [M, COUNT], contiguous
    parts,  # [splits, M, COUNT] fp32, None where columns are not shared
    M,
    x_stride,
    codes_stride,
    parts_stride,
    SIZE: tl.constexpr,
    COUNT: tl.constexpr,
    SHARE: tl.constexpr,  # columns of a program
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    # Programs of one tile of the weight follow one another: all but the first find it in the second cache.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    first = tl.program_id(2) * SHARE
    is_row, is_output = row < M, output < COUNT
    codes_at = codes + output.to(tl.int64)[:, None] * codes_stride  # [OUTPUTS, 1]
    x_at = x + row.to(tl.int64)[None, :] * x_stride  # [1, ROWS]
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in tl.range(first, min(first + SHARE, SIZE), DEPTH, num_stages=STAGES):
        column = start + tl.arange(0, DEPTH)
        inside = column < SIZE
        code = tl.load(codes_at + column[None, :], is_output[:, None] & inside[None, :], other=0)
        given = tl.load(x_at + column[:, None], inside[:, None] & is_row[None, :], other=0.0)  # [DEPTH, ROWS]
        code = code.to(tl.float8e4nv, bitcast=True).to(given.dtype)
        acc = tl.dot(code, given, acc, input_precision="ieee")
    at = row.to(tl.int64)[:, None] * COUNT + output[None, :]
    is_element = is_row[:, None] & is_output[None, :]
    if parts is None:
        y = _scaled(tl.trans(acc), scales, bias, output[None, :], COUNT)
        tl.store(out + at, y.to(out.dtype.element_ty), is_element)
    else:
        tl.store(parts + tl.program_id(2).to(tl.int64) * parts_stride + at, tl.trans(acc), is_element)


@triton.jit
def _sum_parts(
    parts,  # [SPLITS, M, COUNT], `parts_stride` elements apart
    scales,  # [COUNT]
    bias,  # [COUNT], None where there is none
    out,  # [M, COUNT]
    parts_stride,
    COUNT: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    at = tl.program_id(0).to(tl.int64) * COUNT + output
    acc = tl.zeros([TILE], tl.float32)
    for _split in tl.static_range(SPLITS):
        acc += tl.load(parts + at, output < COUNT, other=0.0)
        parts += parts_stride
    y = _scaled(acc, scales, bias, output, COUNT)
    tl.store(out + at, y.to(out.dtype.element_ty), output < COUNT)


@triton.jit
def _scaled(sums, scales, bias, output, COUNT: tl.constexpr):
    """Return sums of codes as what they are sums of, biased."""
    sums *= tl.load(scales + output, output < COUNT, other=0.0)
    if bias is not None:
        sums += tl.load(bias + output, output < COUNT, other=0.0).to(tl.float32)
    return sums


@triton.jit
def _decode(
    codes,  # [rows, SIZE], as bytes, `stride` apart
    scales,  # [rows]
    out,  # [rows, SIZE], contiguous
    stride,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    code = tl.load(codes + row * stride + column, column < SIZE, other=0).to(tl.float8e4nv, bitcast=True)
    number = code.to(tl.float32) * tl.load(scales + row)
    tl.store(out + row * SIZE + column, number.to(out.dtype.element_ty), column < SIZE)
