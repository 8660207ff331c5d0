"""How likely tokens are under rows of logits, and which ones are likeliest.

In float64, all rows at once. Invariants: a row's result does not depend on its neighbours; of equally likely tokens the
lower id comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ROWS_AT_ONCE = 64  # float64 rows of a large vocabulary add up


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
    """Return the ids and values `[n, K]` of each row's `num_top` largest, falling; K is V where that is fewer."""
    ids = _top_ids(every, min(num_top, every.shape[1]))
    return ids, every.gather(1, ids)


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    wide = logits.double()
    shifted = wide - wide.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().cumsum(dim=-1)[:, -1:].log()  # [n, V]; one after another, as in sampling.py


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, num_top: int) -> Logprobs:
    every = _log_softmax(logits)  # [n, V]
    chosen = every.gather(1, tokens[:, None])  # [n, 1]
    top_ids, top_logprobs = likeliest(every, num_top)
    return Logprobs(
        logprob=chosen[:, 0],
        rank=(every > chosen).sum(dim=-1) + 1,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


def _top_ids(every: torch.Tensor, num_top: int) -> torch.Tensor:
    """Return the ids of the `num_top` largest of each row, of equal ones the lower ids first: `[n, K]`."""
    if num_top == 0:
        return torch.empty((every.shape[0], 0), dtype=torch.int64, device=every.device)
    last = every.topk(num_top, dim=-1).values[:, -1:]
    rows, ids = (every >= last).nonzero(as_tuple=True)  # a few more than asked where some are equal
    order = every[rows, ids].argsort(descending=True, stable=True)
    order = order[rows[order].argsort(stable=True)]  # by row, then falling, then by id
    starts = torch.searchsorted(rows, torch.arange(every.shape[0], device=every.device))  # [n]
    places = starts[:, None] + torch.arange(num_top, device=every.device)
    return ids[order][places]
