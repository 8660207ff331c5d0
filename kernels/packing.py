"""Weights as the native products read them: stripes of 32 outputs, `[ceil(N / 32), K / step, 32, step]`.

Zeros stand behind the last output; `step` elements of an input lie behind one another, as many as the processor
multiplies at once. Knows nothing of what a product is for.
"""

from __future__ import annotations

import torch

from pagewire.kernels.arena import Arena
from pagewire.kernels.scaled_weight import Weight

LANES = 16  # of a vector: heads in a pool are multiples of it (`stored_head_dim`)
STRIPE = 32  # outputs that lie behind one another for each `step` inputs
STEP = {torch.bfloat16: 2, torch.float32: 1}
SUFFIX = {torch.bfloat16: "bf16", torch.float32: "fp32"}  # of a native function's name


def is_packable(weight: Weight) -> bool:
    """Return whether a weight `[N, K]` can be packed."""
    return weight.dtype in STEP and weight.shape[1] % STEP[weight.dtype] == 0


def pack(weight: torch.Tensor, arena: Arena) -> torch.Tensor:
    """Return the stripes of a weight `[N, K]`."""
    step = STEP[weight.dtype]
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
