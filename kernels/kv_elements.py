"""How keys and values are kept in a pool: as numbers of a dtype, or as one byte each with a scale for every head.

A pool's dtype says which. int8 and float8_e4m3fn are quantised: behind the D codes of one token, head and K or V lies
its scale, a bfloat16, in two more elements; a value is its code times its scale. Knows nothing of blocks or layers.
Invariant: what is kept of a token depends on that token alone, so chunks, batches and copies change nothing.
"""

from __future__ import annotations

import torch

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # the largest code of each quantised dtype
# No product is subnormal, which some instructions take for 0; smaller heads have this scale too, and fewer codes.
SMALLEST_SCALE = 2.0**-100
NATIVE = {torch.bfloat16: 0, torch.float32: 1, torch.int8: 2, torch.float8_e4m3fn: 3}  # `Stored` of native/stored.h


def encode(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return x `[..., D]` as a pool of `dtype` keeps it: `[..., D]`, or `[..., D + 2]` where that is quantised.

    The scale is max |x| / (largest code), in bfloat16; a code is x / scale, rounded to the nearest, ties to even.
    """
    if dtype not in LARGEST:
        return x.to(dtype)
    wide = x.float()
    scale = (wide.abs().amax(-1, keepdim=True) / LARGEST[dtype]).bfloat16().clamp(min=SMALLEST_SCALE)
    # In bfloat16 a scale is too small by 1/256 at most: no code rounds to more than the largest.
    codes = wide / scale.float()
    codes = (codes.round() if dtype is torch.int8 else codes).to(dtype)
    return torch.cat((codes.view(torch.uint8), scale.view(torch.uint8)), dim=-1).view(dtype)


def decode(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what `encode` made `[..., D]` of, as far as it is known: in `dtype`, from the exact product in fp32."""
    if stored.dtype not in LARGEST:
        return stored.to(dtype)
    scale = stored[..., -2:].contiguous().view(torch.bfloat16).float()
    return (stored[..., :-2].float() * scale).to(dtype)


def byte_strides(kv: torch.Tensor) -> tuple[int, int, int, int]:
    """Return from block to block, K to V, head to head and slot to slot of one layer `[N, 2, Hk, B, D]`, in bytes."""
    block, value, head, slot = (stride * kv.element_size() for stride in kv.stride()[:4])
    return block, value, head, slot
