"""Stateless sampling: a token is a pure function of (logits, seed, sequence index, position).

Gumbel-max: the token with the largest logit / temperature + noise, where the noise of a token id is a hash of
(seed, index, position, id). Filters come after the temperature, in the order top-k, top-p, min-p, each over what the
one before left. Rows are handled one by one, so that no row's sums depend on its neighbours. Knows no generator and no
state.
"""

from __future__ import annotations

import math

import torch

from pagewire.kernels.ragged import SamplingRows

_MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_UNIFORM_BITS = 52  # the widest for which (2^bits - 1/2) / 2^bits is still below 1 in float64


def sample(logits: torch.Tensor, rows: SamplingRows) -> list[int]:
    """Return a token for each row of logits `[n, V]` fp32; see `Backend.sample`."""
    best = logits.max(dim=-1)  # the likeliest token answers greedy rows, its logit shows a broken row
    tokens: list[int] = best.indices.tolist()
    for row, largest in enumerate(best.values.tolist()):
        if not math.isfinite(largest):
            raise ValueError(f"row {row} of the logits has no finite maximum")
        if rows.temperature[row] > 0.0 and rows.top_k[row] != 1:
            tokens[row] = _sample_row(logits[row], rows, row)
    return tokens


def _sample_row(logits: torch.Tensor, rows: SamplingRows, row: int) -> int:
    scaled = logits.double() / rows.temperature[row]  # [V]
    scaled, ids = _filter(scaled, rows.top_k[row], rows.top_p[row], rows.min_p[row])
    noise = gumbel(rows.seed[row], rows.index[row], rows.position[row], ids)
    return int(ids[(scaled + noise).argmax()])


def _filter(scaled: torch.Tensor, top_k: int, top_p: float, min_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the remaining logits and their token ids."""
    ids = torch.arange(scaled.shape[0], device=scaled.device)
    if 0 < top_k < scaled.shape[0]:
        kept = scaled >= scaled.topk(top_k).values[-1]  # ties with the last stay, whatever order topk gives them
        scaled, ids = scaled[kept], ids[kept]
    if top_p < 1.0:
        # Stable, so that equal logits keep the order of their ids.
        scaled, order = scaled.sort(descending=True, stable=True)
        probabilities = scaled.softmax(dim=0)
        before = probabilities.cumsum(dim=0) - probabilities
        kept = before < top_p  # the one that crosses the bound stays, so at least the first does
        kept[0] = True
        scaled, ids = scaled[kept], ids[order][kept]
    if min_p > 0.0:
        kept = scaled >= scaled.max() + math.log(min_p)
        scaled, ids = scaled[kept], ids[kept]
    return scaled, ids


def gumbel(seed: int, index: int, position: int, ids: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise for token ids `[n]` int64: `[n]` float64, finite."""
    key = _mix_int(_mix_int(_mix_int(seed & _MASK_64) + index) + position)
    bits = _mix_tensor(_signed(key) + (ids + 1) * _signed(_GOLDEN))  # [n] int64, wrapping
    uniform = ((bits & ((1 << _UNIFORM_BITS) - 1)).double() + 0.5) * 2.0**-_UNIFORM_BITS  # in (0, 1)
    return -(-uniform.log()).log()


def _mix_int(value: int) -> int:
    # splitmix64's finaliser, after one step of its counter.
    value = (value + _GOLDEN) & _MASK_64
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK_64
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK_64
    return value ^ (value >> 31)


def _mix_tensor(value: torch.Tensor) -> torch.Tensor:
    # The same finaliser; int64 products wrap, and a shift to the right must not copy the sign.
    value = (value ^ _shift_right(value, 30)) * _signed(_MIX_1)
    value = (value ^ _shift_right(value, 27)) * _signed(_MIX_2)
    return value ^ _shift_right(value, 31)


def _shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
