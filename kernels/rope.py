"""Rotary position embeddings: the angle of each pair of dimensions at each position, and the rotation by them.

Pairs are (d, d + D/2), as Hugging Face weights have them. Knows formulas; reads no config. Invariant: an angle depends
on its position alone, never on how long the sequence is or will be, so a rotated key may be shared by all that follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

MOST_POSITIONS = 1 << 18  # of a table: 128 MiB at a head dim of 128
POSITIONS_AT_ONCE = 1 << 12  # of a table, which fp64 on its way would make several times as large
KNOWN_SCALINGS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How positions become angles: the base, and how it reaches beyond `original_max_positions`.

    `low_freq_factor` and `high_freq_factor` belong to llama3, the fields below them to yarn.
    """

    theta: float
    scaling: str = "default"
    factor: float = 1.0
    original_max_positions: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.scaling not in KNOWN_SCALINGS:
            raise ValueError(f"rope scaling {self.scaling!r} is not one of {', '.join(KNOWN_SCALINGS)}")
        if self.theta <= 1 or self.factor <= 0:  # angles that grow, or of no end
            raise ValueError(f"rope_theta must be above 1 and its factor above 0, are {self.theta} and {self.factor}")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            told = f"{self.low_freq_factor} and {self.high_freq_factor}"
            raise ValueError(f"low_freq_factor must be above 0 and below high_freq_factor, they are {told}")
        if not 0 < self.beta_slow <= self.beta_fast:
            raise ValueError(
                f"beta_slow must be above 0 and no more than beta_fast, {self.beta_slow} of {self.beta_fast}"
            )


class Rotary:
    """The rotary embedding of one model, for positions below `num_positions`, on one device.

    Where heads of D are kept `wide` numbers wide, W, the zeros behind each of their halves are turned too.

    All angles are computed once, on the host, and then looked up. Those of very many positions, and dynamic ones, which
    follow another formula at every position, are computed in each step. Nothing waits for the device.
    """

    def __init__(
        self, rope: Rope, head_dim: int, num_positions: int, device: torch.device, wide: int | None = None
    ) -> None:
        self._rope = rope
        self._head_dim = head_dim
        lacking = ((wide or head_dim) - head_dim) // 2
        self._exponents = functional.pad(_exponents(head_dim), (0, lacking)).to(device)  # [W / 2]
        frequencies = functional.pad(inverse_frequencies(rope, head_dim), (0, lacking))  # [W / 2]
        self._frequencies = frequencies.to(device)
        self._table: torch.Tensor | None = None  # [2, P, W / 2] fp32
        if rope.scaling != "dynamic" and num_positions <= MOST_POSITIONS:
            parts = torch.split(torch.arange(num_positions), POSITIONS_AT_ONCE)  # type: ignore[no-untyped-call]
            table = torch.cat([torch.stack(cos_sin(frequencies, part)) for part in parts], dim=1)
            self._table = table.mul_(rope.attention_factor).to(device)

    def cos_sin(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `append_kv` rotates by: `[T, W / 2]` fp32 each, for positions `[T]`."""
        if self._table is not None:
            cos, sin = self._table.index_select(1, positions).unbind(0)
            return cos, sin
        rope, frequencies = self._rope, self._frequencies
        if rope.scaling == "dynamic":
            frequencies = _dynamic(rope, self._exponents, self._head_dim, positions)  # [T, W / 2]
        cos, sin = cos_sin(frequencies, positions)
        return cos * rope.attention_factor, sin * rope.attention_factor


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Return the angle per position of each pair of dimensions: `[D / 2]` fp32; dynamic: of the original positions."""
    frequencies = 1.0 / (rope.theta ** _exponents(head_dim))
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "llama3":
        return _llama3(frequencies, rope)
    if rope.scaling == "yarn":
        return _yarn(frequencies, rope, head_dim)
    return frequencies


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """Return what yarn multiplies cosine and sine by: 0.1 ln(factor) + 1, or the ratio of two such, scaled.

    YaRN, https://arxiv.org/abs/2309.00071, section 3.4; the ratio is DeepSeek's.
    """

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim  # [D / 2]


def _dynamic(rope: Rope, exponents: torch.Tensor, head_dim: int, positions: torch.Tensor) -> torch.Tensor:
    # The base grows with the sequence (NTK-aware scaling). A cached key keeps the rotation it was written with, so each
    # token is turned by the base of the sequence that ends with it: what a cache that is fed token by token holds.
    lengths = (positions + 1).clamp(min=rope.original_max_positions)[:, None]  # [T, 1]
    stretch = rope.factor * lengths / rope.original_max_positions - (rope.factor - 1)
    base = (rope.theta * stretch.double() ** (head_dim / (head_dim - 2))).float()
    # Powers rounded from fp64: see `cos_sin`.
    return 1.0 / (base.double() ** exponents.double()).float()  # [T, D / 2]


def _yarn(frequencies: torch.Tensor, rope: Rope, head_dim: int) -> torch.Tensor:
    # Pairs that turn more than `beta_fast` times over the original positions are kept, those that turn less than
    # `beta_slow` times are stretched by `factor`, those between are blended. Sections 3.1 and 3.2 of the paper.
    def pair_that_turns(times: float) -> float:
        turns = rope.original_max_positions / (times * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first if last != first else 0.001
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)  # [D / 2]
    return frequencies / rope.factor * stretched + frequencies * (1 - stretched)


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
    """Return cosine and sine of every angle: `[T, D / 2]` fp32 each, of `[D / 2]` or `[T, D / 2]` frequencies.

    The angles are fp32, as the models were trained; what is taken of them is rounded from fp64, so that an element's
    last bit does not depend on whether it was computed in a vector or behind the last one.
    """
    angles = (positions.float()[:, None] * frequencies).double()
    return angles.cos().float(), angles.sin().float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x `[T, H, D]`, whose pairs are (d, d + D/2), by `[T, D / 2]`; computed in fp32, returned in x's dtype."""
    first, second = x.float().chunk(2, dim=-1)  # [T, H, D/2] each
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
