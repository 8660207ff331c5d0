"""Weights as the native products read them: stripes of 32 outputs, `[ceil(N / 32), K / step, 32, step]`.

Zeros stand behind the last output; `step` elements of an input lie behind one another, as many as fill 32 bits. Codes
in 8 bits are each 128 larger, since the processor takes them unsigned, and keep their scales. Knows nothing of what a
product is for.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from pagewire.kernels.arena import Arena
from pagewire.kernels.coded_weight import CodedWeight
from pagewire.kernels.scaled_weight import Weight, plain

LANES = 16  # of the widest vectors: heads in a pool are multiples of it (`stored_head_dim`)
STRIPE = 32  # outputs that lie behind one another for each `step` inputs
STEP = {torch.bfloat16: 2, torch.float32: 1}
CODED_STEP = 4
SUFFIX = {torch.bfloat16: "bf16", torch.float32: "fp32"}  # of a native function's name


class Matrix(ctypes.Structure):
    """`Matrix` of native/packed.h."""

    _fields_ = (("packed", ctypes.c_void_p), ("scales", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight `[N, K]`; whoever uses `matrix` keeps this meanwhile."""

    stripes: torch.Tensor  # [ceil(N / 32), K / step, 32, step]
    scales: torch.Tensor | None = None  # of codes: [ceil(N / 32), ceil(K / GROUP), 32] bfloat16

    def matrix(self) -> Matrix:
        """Return where both lie."""
        return Matrix(self.stripes.data_ptr(), None if self.scales is None else self.scales.data_ptr())


def is_packable(weight: Weight) -> bool:
    """Return whether a weight `[N, K]` can be packed: of codes K is whole vectors."""
    whole = LANES if isinstance(weight, CodedWeight) else STEP.get(weight.dtype, 0)
    return weight.dtype in STEP and weight.shape[1] % whole == 0


def pack(weight: Weight, arena: Arena, *, in_turns: bool = False) -> Packed:
    """Return a weight `[N, K]` packed, of which `in_turns` 16 rows are of its first half and 16 of the second by turns.

    Of a `ScaledWeight` it is what that stands for.
    """
    arranged = by_turns if in_turns else torch.Tensor.contiguous
    if not isinstance(weight, CodedWeight):
        numbers = plain(weight)
        return Packed(_stripes(arranged(numbers), STEP[numbers.dtype], arena))
    unsigned = weight.codes.view(torch.uint8) ^ 128
    codes = _stripes(arranged(unsigned), CODED_STEP, arena)
    return Packed(codes, _stripes(arranged(weight.scales), 1, arena).squeeze(3))


def _stripes(weight: torch.Tensor, step: int, arena: Arena) -> torch.Tensor:
    num_outputs, num_inputs = weight.shape
    num_stripes, whole = -(-num_outputs // STRIPE), num_outputs // STRIPE
    stripes = arena.empty((num_stripes, num_inputs // step, STRIPE, step), weight.dtype)
    stripes[:whole] = weight[: whole * STRIPE].view(whole, STRIPE, num_inputs // step, step).permute(0, 2, 1, 3)
    if whole < num_stripes:
        rest = weight[whole * STRIPE :].view(-1, num_inputs // step, step)  # [N % 32, K / step, step]
        stripes[whole] = 0
        stripes[whole, :, : rest.shape[0]] = rest.transpose(0, 1)
    return stripes


def by_turns(halves: torch.Tensor) -> torch.Tensor:
    """Return `[2 I, ...]` with 16 rows of the first half and 16 of the second by turns."""
    size = halves.shape[0] // 2
    return halves.view(2, size // LANES, LANES, *halves.shape[1:]).transpose(0, 1).reshape(halves.shape)
