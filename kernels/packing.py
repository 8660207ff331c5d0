"""Weights as the native products read them: panels of 16 outputs, `[ceil(N / 16), K / step, 16, step]`.

Zeros stand behind the last output; `step` elements of an input lie behind one another, as many as the processor
multiplies at once. Knows nothing of what a product is for.
"""

from __future__ import annotations

import torch

from pagewire.kernels.arena import Arena

LANES = 16
STEP = {torch.bfloat16: 2, torch.float32: 1}
SUFFIX = {torch.bfloat16: "bf16", torch.float32: "fp32"}  # of a native function's name


def is_packable(weight: torch.Tensor) -> bool:
    """Return whether a weight `[N, K]` can be packed."""
    return weight.dtype in STEP and weight.shape[1] % STEP[weight.dtype] == 0


def pack(weight: torch.Tensor, arena: Arena) -> torch.Tensor:
    """Return the panels of a weight `[N, K]`."""
    step = STEP[weight.dtype]
    num_outputs, num_inputs = weight.shape
    num_panels, whole = -(-num_outputs // LANES), num_outputs // LANES
    panels = arena.empty((num_panels, num_inputs // step, LANES, step), weight.dtype)
    panels[:whole] = weight[: whole * LANES].view(whole, LANES, -1, step).permute(0, 2, 1, 3)
    if whole < num_panels:
        rest = weight[whole * LANES :].view(-1, num_inputs // step, step)  # [N % 16, K / step, step]
        panels[whole] = 0
        panels[whole, :, : rest.shape[0]] = rest.transpose(0, 1)
    return panels


def by_turns(halves: torch.Tensor) -> torch.Tensor:
    """Return `[2 I, ...]` with 16 rows of the first half and 16 of the second by turns."""
    size = halves.shape[0] // 2
    return halves.view(2, size // LANES, LANES, *halves.shape[1:]).transpose(0, 1).reshape(halves.shape)
