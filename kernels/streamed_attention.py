"""Attention of one sequence whose KV does not fit the pool: piece by piece, each brought to the device for one layer.

Its first blocks lie in host memory, the others in the pool. The pieces' results are merged as flash attention merges
its tiles (Milakov and Gimelshein 2018, Dao et al. 2022), in fp32: with o_i = softmax(s_i) v_i and l_i = log sum
exp(s_i) over the keys of piece i alone,

    l = log sum_i exp(l_i)        o = sum_i exp(l_i - l) o_i

Knows nothing of who spills what. Invariant: beside its result it keeps one piece of KV on the device at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pagewire.kernels import kv_elements
from pagewire.kernels.ragged import Ragged

if TYPE_CHECKING:
    from pagewire.kernels.backend import Backend

PIECE_TOKENS = 1024  # brought to the device at once: bounds it, and the scores of a chunk's rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedPlan:
    """A batch of one sequence that is attended in pieces."""

    ragged: Ragged
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """Attention over some keys alone; a row that sees none of them has 0 and -inf."""

    out: torch.Tensor  # [T, Hq, D] fp32
    log_sum: torch.Tensor  # [T, Hq] fp32, log of the sum of exp(score)


def partial_attention(
    q: torch.Tensor, kv: torch.Tensor, first_query: int, first_key: int, window: int, scale: float, softcap: float
) -> Partial:
    """See `Backend.partial_attention`, which this is in plain torch."""
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads, num_keys = kv.shape[1], kv.shape[2]
    k, v = kv.float()  # [Hk, n, D] each
    rows = q.float().transpose(0, 1).reshape(num_kv_heads, -1, head_dim)  # [Hk, G x T, D]
    scores = (rows @ k.transpose(1, 2) * scale).view(num_kv_heads, -1, num_rows, num_keys)  # [Hk, G, T, n]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    positions = torch.arange(first_query, first_query + num_rows, device=q.device)[:, None]  # [T, 1]
    keys = torch.arange(first_key, first_key + num_keys, device=q.device)
    hidden = keys > positions
    if window:
        hidden |= keys <= positions - window
    scores = scores.masked_fill(hidden, float("-inf"))
    log_sum = torch.logsumexp(scores, dim=-1, keepdim=True)  # [Hk, G, T, 1]
    weights = torch.exp(scores - log_sum).masked_fill(log_sum == -torch.inf, 0.0)  # of a row that sees nothing
    out = (weights.view(num_kv_heads, -1, num_keys) @ v).view(num_q_heads, num_rows, head_dim)
    return Partial(out=out.transpose(0, 1), log_sum=log_sum.view(num_q_heads, num_rows).transpose(0, 1))


def merge(first: Partial, second: Partial) -> Partial:
    """Return the attention over the keys of both, by the formula above."""
    log_sum = torch.logaddexp(first.log_sum, second.log_sum)
    out = sum(
        (part.out * _share(part.log_sum, log_sum)[..., None] for part in (first, second)), torch.zeros_like(first.out)
    )
    return Partial(out=out, log_sum=log_sum)


def _share(log_sum: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return exp(l_i - l), 0 for a part that sees nothing; a NaN stays one, for the sampler to meet."""
    return torch.exp(log_sum - whole).masked_fill(log_sum == -torch.inf, 0.0)


def attend(
    backend: Backend,
    q: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    plan: StreamedPlan,
    scale: float,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what `Backend.paged_attention` does, for the plan's one sequence: `[T, Hq, D]`."""
    first_query = plan.ragged.kv_lens[0] - plan.ragged.query_lens[0]
    merged: Partial | None = None
    for first_key, kv in _pieces(pool, layer, plan, q.dtype):
        part = backend.partial_attention(q, kv, first_query, first_key, plan.window, scale, softcap)
        merged = part if merged is None else merge(merged, part)
    assert merged is not None, "a sequence has at least the token that it computes"
    out = merged.out
    if sinks is not None:
        out = out * torch.exp(merged.log_sum - torch.logaddexp(merged.log_sum, sinks.float()))[..., None]
    return out.to(q.dtype)


def _pieces(
    pool: torch.Tensor, layer: int, plan: StreamedPlan, dtype: torch.dtype
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield pieces of the KV that any row sees, as the position of the first key and `[2, Hk, n, D]`."""
    ragged, spilled = plan.ragged, plan.ragged.spilled
    assert spilled is not None
    assert len(ragged.kv_lens) == 1, "a sequence that spills is alone in its batch"
    size, kv_len = ragged.block_size, ragged.kv_lens[0]
    first_seen = max(0, kv_len - ragged.query_lens[0] - plan.window + 1) if plan.window else 0
    num_blocks, num_spilled = -(-kv_len // size), len(spilled.slots)
    table = torch.tensor(spilled.slots)
    at_once = max(1, PIECE_TOKENS // size)
    for source, first, stop in ((spilled.memory, 0, num_spilled), (pool, num_spilled, num_blocks)):
        for block in range(max(first, first_seen // size), stop, at_once):
            end = min(block + at_once, stop)
            ids = table[block:end] if source is not pool else ragged.block_table[0, block:end]
            kv = source[:, layer].index_select(0, ids.to(source.device)).to(pool.device)  # [m, 2, Hk, B, D]
            kv = kv_elements.decode(kv.permute(1, 2, 0, 3, 4).flatten(2, 3), dtype)  # [2, Hk, m x B, D]
            yield block * size, kv[:, :, : kv_len - block * size]
