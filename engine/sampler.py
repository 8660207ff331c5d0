"""From a batch's logits to a token per drawing sequence, and what was asked about how likely tokens were.

Stateless: see `kernels/sampling.py`. Log probabilities are those of the model, before anything is done to its logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagewire.core.errors import InvalidRequest
from pagewire.core.token_record import TokenLogprobs
from pagewire.engine.batch import Batch
from pagewire.engine.edit_builder import EditBuilder
from pagewire.engine.step import Computed, Draw
from pagewire.kernels.backend import Backend
from pagewire.kernels.logit_edits import edit
from pagewire.kernels.logprobs import logprobs
from pagewire.kernels.sampling_rows import SamplingRows


class Sampler:
    """Draws the tokens of a batch."""

    def __init__(self, backend: Backend, edits: EditBuilder) -> None:
        self._backend = backend
        self._edits = edits

    def draw(self, logits: torch.Tensor, batch: Batch) -> dict[str, Computed]:
        """Return what is computed per request from the logits `[n, V]` of the batch's `logit_rows`.

        Raises ValueError for a row without a distribution, InvalidRequest where a sequence may choose no token at all.
        """
        draws, num_draws = list(batch.draws.values()), len(batch.draws)
        tokens = self._tokens(logits[:num_draws], batch.draws) if draws else []
        reports = _reports(logits, draws, tokens)
        scores = _scores(logits[num_draws:], batch)
        computed = {
            request_id: Computed(token=token, logprobs=reports.get(row), prompt_logprobs=scores.pop(request_id, ()))
            for row, (request_id, token) in enumerate(zip(batch.draws, tokens, strict=True))
        }
        return computed | {request_id: Computed(prompt_logprobs=rows) for request_id, rows in scores.items()}

    def _tokens(self, logits: torch.Tensor, draws: dict[str, Draw]) -> list[int]:
        edits = self._edits.build(draws, logits.shape[1])
        if edits is not None:
            edited = edit(logits, edits)
            barred = (edited.amax(dim=-1) == -torch.inf) & (logits.amax(dim=-1) > -torch.inf)  # [n]
            if bool(barred.any()):
                raise InvalidRequest("what is allowed and what is banned leave no token to choose", field="sampling")
            logits = edited
        return self._backend.sample(logits, _rows(list(draws.values())))


def _rows(draws: Sequence[Draw]) -> SamplingRows:
    return SamplingRows(
        temperature=tuple(draw.sampling.temperature for draw in draws),
        top_k=tuple(draw.sampling.top_k for draw in draws),
        top_p=tuple(draw.sampling.top_p for draw in draws),
        min_p=tuple(draw.sampling.min_p for draw in draws),
        typical_p=tuple(draw.sampling.typical_p for draw in draws),
        seed=tuple(draw.sampling.seed for draw in draws),
        index=tuple(draw.index for draw in draws),
        position=tuple(draw.position for draw in draws),
    )


def _reports(logits: torch.Tensor, draws: Sequence[Draw], tokens: Sequence[int]) -> dict[int, TokenLogprobs]:
    """Return what was asked of drawn tokens, by row, from the logits whose first rows are those of `draws`."""
    num_top = {row: draw.sampling.logprobs for row, draw in enumerate(draws) if draw.sampling.logprobs is not None}
    if not num_top:
        return {}
    rows = torch.tensor(list(num_top), device=logits.device)
    return dict(
        zip(num_top, _report(logits[rows], [tokens[row] for row in num_top], list(num_top.values())), strict=True)
    )


def _scores(logits: torch.Tensor, batch: Batch) -> dict[str, tuple[TokenLogprobs, ...]]:
    """Return what was asked of prompts, from the logits `[m, V]` of their rows."""
    scorings = batch.scorings.values()
    if not scorings:
        return {}
    targets = [target for scoring in scorings for target in scoring.targets]
    num_top = [scoring.num_top for scoring in scorings for _ in scoring.targets]
    rows = iter(_report(logits, targets, num_top))
    return {name: tuple(next(rows) for _ in scoring.targets) for name, scoring in batch.scorings.items()}


def _report(logits: torch.Tensor, tokens: list[int], num_top: list[int]) -> list[TokenLogprobs]:
    """Return how likely each row's token is, and its `num_top` likeliest."""
    found = logprobs(logits, torch.tensor(tokens, device=logits.device), max(num_top))
    columns = (found.logprob.tolist(), found.rank.tolist(), found.top_ids.tolist(), found.top_logprobs.tolist())
    return [
        TokenLogprobs(
            token=token,
            logprob=logprob,
            rank=rank,
            top_tokens=tuple(top_ids[:count]),
            top_logprobs=tuple(top_logprobs[:count]),
        )
        for token, count, logprob, rank, top_ids, top_logprobs in zip(tokens, num_top, *columns, strict=True)
    ]
