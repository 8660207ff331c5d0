"""What adapters add to a decoder's products: of a row x, its own adapter's up (down x) (LoRA: Hu et al., 2021).

Knows tensors; nothing of files or requests. An adapter's number counts from 1; 0 is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """What is added to one product, which may be several fused: rank R; the adapter's scale is in `up`."""

    down: torch.Tensor  # [R, K]
    up: torch.Tensor  # [N, R]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAdapter:
    """One adapter's part in a layer, by product; None where it has none."""

    qkv: LowRank | None = None
    o: LowRank | None = None
    gate_up: LowRank | None = None
    down: LowRank | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedRows:
    """Rows `first` .. `end` - 1 of a batch are adapter `number`'s."""

    first: int
    end: int
    number: int


def add(
    x: torch.Tensor, product: torch.Tensor, parts: Sequence[LowRank | None], adapted: Sequence[AdaptedRows]
) -> None:
    """Add to `product` `[T, N]` of rows `x` `[T, K]` what their adapters do; `parts` are those of all adapters."""
    for rows in adapted:
        part = parts[rows.number - 1]
        if part is not None:
            own = slice(rows.first, rows.end)
            product[own] += (x[own] @ part.down.t()) @ part.up.t()
