"""RMSNorm with the residual added first: one read of each operand, one write of each result.

    total = x + residual                                          rounded to the dtype of x
    normed = round(total / sqrt(mean(total^2) + eps)) * weight    statistics in fp32

Zhang and Sennrich, https://arxiv.org/abs/1910.07467, with the rounding that the models were trained with. Its torch
reference is `TorchBackend.rms_norm`. A program takes whole rows, as many as fill its threads, so a row's sum is always
taken in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagewire.kernels.gpu.dependent_launch import wait_for_earlier

TILE = 2048  # elements of a program, where a row has fewer
PER_THREAD = 16  # elements: two accesses of 16 bytes in 16-bit dtypes
MAX_WARPS = 16


@triton.jit(do_not_specialize=["num_rows"])  # which changes from batch to batch
def _rms_norm(
    x,  # [num_rows / HEADS, HEADS, SIZE], heads side by side, tokens `stride` elements apart
    residual,  # [num_rows, SIZE], contiguous as all below
    weight,  # [SIZE]
    normed,  # [num_rows, SIZE]
    total,  # [num_rows, SIZE]
    num_rows,
    stride,
    eps,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,  # SIZE, as a power of two
    HAS_RESIDUAL: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    column = tl.arange(0, WIDTH)[None, :]  # [1, WIDTH]
    inside = (row < num_rows) & (column < SIZE)
    token, head = (row // HEADS).to(tl.int64), row % HEADS
    place = row.to(tl.int64) * SIZE + column  # of the contiguous operands
    value = tl.load(x + token * stride + head * SIZE + column, inside, other=0.0)
    dtype = value.dtype
    if HAS_RESIDUAL:
        value = (value.to(tl.float32) + tl.load(residual + place, inside, other=0.0).to(tl.float32)).to(dtype)
        tl.store(total + place, value, inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / SIZE + eps)[:, None]  # [ROWS, 1]
    rounded = (wide * scale).to(dtype).to(tl.float32)
    weights = tl.load(weight + column, column < SIZE, other=0.0).to(tl.float32)
    tl.store(normed + place, (rounded * weights).to(dtype), inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None, *, overlaps: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (norm(x + residual) * weight, x + residual) over the last axis of x `[T, H]` or `[T, heads, D]`.

    x may be a part of a wider row; without a residual the second result is x itself. `overlaps` is that of
    `Processor`.
    """
    size, heads = x.shape[-1], x.shape[1] if x.dim() == 3 else 1
    if x.stride()[1:] != ((size, 1) if x.dim() == 3 else (1,)):
        x = x.contiguous()
    num_rows, width = x.shape[0] * heads, triton.next_power_of_2(size)
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    added = x if residual is None else residual.contiguous()
    rows = max(1, TILE // width)
    if num_rows:
        _rms_norm[(triton.cdiv(num_rows, rows),)](
            x, added, weight, normed, total, num_rows, x.stride(0), eps,
            HEADS=heads, SIZE=size, ROWS=rows, WIDTH=width, HAS_RESIDUAL=residual is not None, OVERLAPS=overlaps,
            num_warps=min(MAX_WARPS, max(1, rows * width // (32 * PER_THREAD))), launch_pdl=overlaps,
        )  # fmt: skip
    return normed, total
