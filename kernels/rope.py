"""Rotary position embedding: the frequencies of each scaling that we honour, and the tables of a batch.

Knows nothing of heads or caches. A scaling that is not here is refused by name: rotating by the wrong angle gives
fluent nonsense, never an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

KNOWN_SCALINGS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How positions become angles. Fields beyond `factor` belong to llama3 scaling."""

    theta: float
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self) -> None:
        if self.scaling not in KNOWN_SCALINGS:
            raise ValueError(f"rope scaling {self.scaling!r} is not one of {', '.join(KNOWN_SCALINGS)}")


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Return the angle per position of each pair of dimensions: `[D / 2]` fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: torch.Tensor, rope: Rope) -> torch.Tensor:
    # Long wavelengths are stretched by `factor`, short ones kept, those between blended.
    wavelengths = 2 * math.pi / frequencies
    longest_kept = rope.original_max_positions / rope.high_freq_factor
    shortest_stretched = rope.original_max_positions / rope.low_freq_factor
    share = (rope.original_max_positions / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * frequencies / rope.factor + share * frequencies
    scaled = torch.where(wavelengths > shortest_stretched, frequencies / rope.factor, blended)
    return torch.where(wavelengths < longest_kept, frequencies, scaled)


def cos_sin(frequencies: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of every angle: `[T, D / 2]` fp32 each, for positions `[T]`."""
    angles = positions.float()[:, None] * frequencies[None, :]
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x `[T, H, D]`, whose pairs are (d, d + D/2), by `[T, D / 2]`; computed in fp32, returned in x's dtype."""
    first, second = x.float().chunk(2, dim=-1)  # [T, H, D/2] each
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
