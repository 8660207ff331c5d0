"""Every op from its definition, in float64 and with loops: what the backends are compared with."""

from __future__ import annotations

import math

import torch

# Largest difference from float64 that a backend may show, by dtype.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Hold every element to its reference, in float64, within what the dtype of `actual` allows."""
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.double()


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half].double(), gate_up[..., half:].double()
    return gate / (1 + torch.exp(-gate)) * up


def rotate(x: torch.Tensor, position: int, frequencies: list[float]) -> torch.Tensor:
    """Rotate one head `[D]`: the pair (d, d + D/2) turns by position x frequency."""
    half = len(frequencies)
    out = x.double().clone()
    for d, frequency in enumerate(frequencies):
        angle = position * frequency
        first, second = float(x[d]), float(x[d + half])
        out[d] = first * math.cos(angle) - second * math.sin(angle)
        out[d + half] = second * math.cos(angle) + first * math.sin(angle)
    return out


def attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first_position: int, window: int, scale: float,
    softcap: float = 0.0, sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attend q `[T, Hq, D]`, at positions from `first_position` on, over keys and values `[n, Hk, D]`."""
    group = q.shape[1] // keys.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row in range(q.shape[0]):
        position = first_position + row
        first = max(0, position - window + 1) if window else 0
        for head in range(q.shape[1]):
            seen = keys[first : position + 1, head // group].double()
            scores = seen @ q[row, head].double() * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            exponentials = torch.exp(scores)
            total = exponentials.sum() + (0.0 if sinks is None else torch.exp(sinks[head].double()))
            out[row, head] = exponentials / total @ values[first : position + 1, head // group].double()
    return out


def kept(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what a quantised pool keeps of heads `[..., D]`, in float64: the nearest code times a bfloat16 scale."""
    codes = torch.arange(-127, 128).double() if dtype is torch.int8 else _e4m3_numbers()
    heads = x.float().reshape(-1, x.shape[-1])
    out = torch.empty(heads.shape, dtype=torch.float64)
    for number, head in enumerate(heads):
        largest = head.abs().max() / codes.max().float()
        scale = max(largest.bfloat16(), torch.tensor(2.0**-100))
        for d, value in enumerate(head):
            apart = (codes - float(value / scale)).abs()
            nearest = (apart == apart.min()).nonzero().flatten()
            # Of two that are as near, the even one: codes of one sign stand in their order, zero is even.
            index = min(nearest.tolist(), key=lambda at: (at - len(codes) // 2) % 2)
            out[number, d] = codes[index] * scale.double()
    return out.view(x.shape)


def _e4m3_numbers() -> torch.Tensor:
    """Return the finite numbers of e4m3 in their order, zero once: m 2^-9, and (8 + m) 2^(e - 10) for e of 1 to 15."""
    positive = [m * 2.0**-9 for m in range(1, 8)]
    positive += [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)][:-1]  # the last is NaN
    return torch.tensor([-x for x in reversed(positive)] + [0.0, *positive], dtype=torch.float64)


def apart(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows with NaN between them."""
    wide = torch.full((rows.shape[0], rows.shape[1] + 5), torch.nan, dtype=rows.dtype)
    wide[:, : rows.shape[1]] = rows
    return wide[:, : rows.shape[1]]
