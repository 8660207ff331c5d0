"""What a device gives in this run: bytes of a copy, FLOP of products of large random matrices.

A limit is the best that can be had, so a copy is made in several ways and sizes: a node of a graph that copies memory
is slower than a kernel that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpu_clock import seconds


def limits(device: torch.device, dtype: torch.dtype, copy_bytes: int, side: int) -> dict[str, Any]:
    """Return bytes per second of the best copy, read and written, and FLOP per second of products of that side.

    `copies` are all that were tried, of `copy_bytes` and twice as many, by name; `copied-by` names the best.
    """
    copies: dict[str, float] = {}
    for num_bytes in (copy_bytes, 2 * copy_bytes):
        copies |= _copies(device, dtype, num_bytes)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    rounds = 7 if device.type == "cuda" else 1
    multiplied = 2 * side**3 / seconds(device, [lambda: torch.mm(left, right, out=product)], rounds)
    best = max(copies, key=copies.__getitem__)
    return {
        "copy-bytes-per-s": copies[best], "copied-by": best, "copies": copies, "matmul-flop-per-s": multiplied,
    }  # fmt: skip


def _copies(device: torch.device, dtype: torch.dtype, num_bytes: int) -> dict[str, float]:
    source = torch.randn(num_bytes // dtype.itemsize, device=device, dtype=dtype)
    target = torch.empty_like(source)
    ways: dict[str, tuple[Callable[[], object], bool]] = {
        "copy_": (lambda: target.copy_(source), False),
        "copy_ in a graph": (lambda: target.copy_(source), True),
        "mul": (lambda: torch.mul(source, 2, out=target), False),
        "cat": (lambda: torch.cat(halves, out=target), False),
    }
    halves = source.chunk(2)
    return {
        f"{way} of {num_bytes >> 20} MiB": 2 * source.nbytes / seconds(device, [work], rounds=3, in_graph=in_graph)
        for way, (work, in_graph) in ways.items()
    }
