"""What a device gives in this run: bytes of a copy, FLOP of products of large random matrices."""

from __future__ import annotations

import torch
from gpu_clock import seconds


def limits(device: torch.device, dtype: torch.dtype, copy_bytes: int, side: int) -> dict[str, float]:
    """Return bytes per second of a copy, read and written, and FLOP per second of products of that side."""
    rounds = 7 if device.type == "cuda" else 1
    source = torch.randn(copy_bytes // dtype.itemsize, device=device, dtype=dtype)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds(device, [lambda: target.copy_(source)], rounds)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    multiplied = 2 * side**3 / seconds(device, [lambda: torch.mm(left, right, out=product)], rounds)
    return {"copy-bytes-per-s": copied, "matmul-flop-per-s": multiplied}
