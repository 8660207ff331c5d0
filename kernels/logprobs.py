"""How likely tokens are under rows of logits, and which ones are likeliest.

In float64, all rows at once. Invariants: a row's result does not depend on its neighbours; of equally likely tokens the
lower id comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ROWS_AT_ONCE = 64  # float64 rows of a large vocabulary add up
_MOST_IDS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Of n rows: the log probability and rank of its token, rank 1 the likeliest, and the K likeliest tokens."""

    logprob: torch.Tensor  # [n] float64
    rank: torch.Tensor  # [n] int64
    top_ids: torch.Tensor  # [n, K] int64
    top_logprobs: torch.Tensor  # [n, K] float64, falling


def logprobs(logits: torch.Tensor, tokens: torch.Tensor, num_top: int) -> Logprobs:
    """Return log softmax of logits `[n, V]` at tokens `[n]`, and its `num_top` largest; K is V where that is fewer."""
    parts = [
        _logprobs(logits[start : start + _ROWS_AT_ONCE], tokens[start : start + _ROWS_AT_ONCE], num_top)
        for start in range(0, len(tokens), _ROWS_AT_ONCE)
    ]
    return Logprobs(
        logprob=torch.cat([part.logprob for part in parts]),
        rank=torch.cat([part.rank for part in parts]),
        top_ids=torch.cat([part.top_ids for part in parts]),
        top_logprobs=torch.cat([part.top_logprobs for part in parts]),
    )


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the log probabilities `[n, V]` of all tokens, fp32."""
    starts = range(0, len(logits), _ROWS_AT_ONCE)
    return torch.cat([_log_softmax(logits[start : start + _ROWS_AT_ONCE]).float() for start in starts])


def likeliest(every: torch.Tensor, num_top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and values `[n, K]` of each fp32 row's `num_top` largest, falling; K is V where that is fewer."""
    ids = _top_ids(every, num_top)
    return ids, every.gather(1, ids)


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    wide = logits.double()
    shifted = wide - wide.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().cumsum(dim=-1)[:, -1:].log()  # [n, V]; one after another, as in sampling.py


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, num_top: int) -> Logprobs:
    every = _log_softmax(logits)  # [n, V]
    chosen = every.gather(1, tokens[:, None])  # [n, 1]
    top_ids = _top_ids(logits, num_top)  # [n, K]
    return Logprobs(
        logprob=chosen[:, 0],
        rank=(every > chosen).sum(dim=-1) + 1,
        top_ids=top_ids,
        top_logprobs=every.gather(1, top_ids),
    )


def _top_ids(values: torch.Tensor, num_top: int) -> torch.Tensor:
    """Return the ids of the `num_top` largest of each row of fp32, of equal ones the lower ids first: `[n, K]`.

    Sorted by one number for both, so that no device is asked how many are equal: a float's bits, as integers that are
    ordered as floats are, above the id. A float64 holds the 32 and the 20 of them exactly.
    """
    assert values.shape[1] <= _MOST_IDS
    if num_top == 0:
        return torch.empty((values.shape[0], 0), dtype=torch.int64, device=values.device)
    bits = (values.float() + 0.0).view(torch.int32)  # 0 has one sign
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    both = ordered.double().mul_(_MOST_IDS).sub_(torch.arange(values.shape[1], device=values.device))
    return both.topk(min(num_top, values.shape[1]), dim=-1).indices
