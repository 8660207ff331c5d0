"""SwiGLU's product: silu(gate) * up, computed in fp32 and rounded once.

    out[t, i] = g / (1 + exp(-g)) * u    with g = gate_up[t, i], u = gate_up[t, I + i]

Shazeer, https://arxiv.org/abs/2002.05202. Its torch reference is `TorchBackend.silu_and_mul`, which rounds the factor
before the product as well.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagewire.kernels.gpu.dependent_launch import wait_for_earlier

TILE = 1024  # elements of a program: two accesses of 16 bytes a thread and operand in 16-bit dtypes
WARPS = 2


@triton.jit
def _silu_and_mul(
    gate_up,  # [T, 2 SIZE], rows `stride` elements apart
    out,  # [T, SIZE], contiguous
    stride,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)  # [TILE]
    inside = column < SIZE
    source = gate_up + row * stride + column
    gate = tl.load(source, inside, other=0.0).to(tl.float32)
    up = tl.load(source + SIZE, inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), inside)


def silu_and_mul(gate_up: torch.Tensor, *, overlaps: bool = False) -> torch.Tensor:
    """Return silu(gate) * up for `[T, 2 I]` whose first half is gate: `[T, I]`; rows may lie apart.

    `overlaps` is that of `Processor`.
    """
    if gate_up.stride(1) != 1:
        gate_up = gate_up.contiguous()
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_rows, size)
    if num_rows:
        _silu_and_mul[(num_rows, triton.cdiv(size, TILE))](
            gate_up, out, gate_up.stride(0), SIZE=size, TILE=TILE, OVERLAPS=overlaps,
            num_warps=WARPS, launch_pdl=overlaps,
        )  # fmt: skip
    return out
