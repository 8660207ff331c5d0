"""Norms of single heads, which some families apply to queries and keys before they are rotated."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """RMSNorm of each head of q and of k, as `Backend.rms_norm` computes it."""

    q: torch.Tensor  # [D]
    k: torch.Tensor  # [D]
    eps: float
