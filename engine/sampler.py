"""From a batch's logits to a token per drawing sequence, and what was asked about how likely tokens were.

A beam has no token drawn: what may follow it is found, for the search to choose from. Stateless: see
`kernels/sampling.py`. Log probabilities are those of the model, before anything is done to its logits; of beams it is
the log probabilities that are edited, not the logits, as transformers does it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Sequence
from dataclasses import replace

import torch

from pagewire.core.errors import InvalidRequest
from pagewire.core.token_record import TokenLogprobs
from pagewire.engine.batch import Batch
from pagewire.engine.beam_search import Candidates
from pagewire.engine.draw_rows import Drawn, rows_of
from pagewire.engine.edit_builder import EditBuilder
from pagewire.engine.step import Computed, Draw
from pagewire.engine.upload import upload
from pagewire.kernels.backend import Backend
from pagewire.kernels.logit_edits import LogitEdits
from pagewire.kernels.logprobs import likeliest, log_softmax, logprobs
from pagewire.kernels.sampling_rows import SamplingRows

NO_DISTRIBUTION = "a row of logits has no distribution"
NO_TOKEN = "what is allowed and what is banned leave no token to choose"


class Sampler:
    """Draws the tokens of a batch."""

    def __init__(self, backend: Backend, edits: EditBuilder) -> None:
        self._backend = backend
        self._edits = edits

    def draw(self, logits: torch.Tensor, batch: Batch, drawn: Drawn | None = None) -> dict[str, Computed]:
        """Return what is computed per request from the logits `[n, V]` of the batch's `logit_rows`.

        `drawn` has a token for each already, which is taken where none is edited, nor chosen by typical-p.

        Raises ValueError for a row without a distribution, InvalidRequest where a sequence may choose no token at all.
        """
        num_draws = len(batch.draws)
        beams = {name: draw for name, draw in batch.draws.items() if draw.num_candidates}
        if not beams:
            computed = self._drawn(logits[:num_draws], batch.draws, drawn)
        else:
            others = {name: draw for name, draw in batch.draws.items() if name not in beams}
            computed = self._followed(logits[_places(logits, batch, beams)], beams)
            computed |= self._drawn(logits[_places(logits, batch, others)], others)
        for name, rows in _scores(logits[num_draws:], batch).items():
            computed[name] = replace(computed.get(name, Computed()), prompt_logprobs=rows)
        return computed

    def _drawn(self, logits: torch.Tensor, draws: dict[str, Draw], drawn: Drawn | None = None) -> dict[str, Computed]:
        if not draws:
            return {}
        edits = self._edits.build(draws, logits.shape[1])
        if drawn is not None and edits is None and all(draw.sampling.typical_p == 1.0 for draw in draws.values()):
            tokens = drawn()
        else:
            tokens = self._sampled(logits, edits, rows_of(list(draws.values())))
        reports = _reports(logits, list(draws.values()), tokens)
        return {
            name: Computed(token=token, logprobs=reports.get(row))
            for row, (name, token) in enumerate(zip(draws, tokens, strict=True))
        }

    def _sampled(self, logits: torch.Tensor, edits: LogitEdits | None, rows: SamplingRows) -> list[int]:
        edited = logits if edits is None else self._backend.edit_logits(logits, edits)
        try:
            return self._backend.sample(edited, rows)
        except ValueError:  # whose fault it is is asked afterwards: it is hardly ever anybody's
            barred = (edited.amax(dim=-1) == -torch.inf) & (logits.amax(dim=-1) > -torch.inf)  # [n]
            if edits is not None and edits.may_bar and bool(barred.any()):
                raise InvalidRequest(NO_TOKEN, field="sampling") from None
            raise

    def _followed(self, logits: torch.Tensor, beams: dict[str, Draw]) -> dict[str, Computed]:
        """Return what may follow each beam."""
        every = log_softmax(logits)  # [n, V]
        if (edits := self._edits.build(beams, logits.shape[1])) is not None:
            every = self._backend.edit_logits(every, edits)
        ids, values = likeliest(every, max(draw.num_candidates for draw in beams.values()))  # [n, K]
        told = _told(every.isnan().any(dim=-1), ids, values)
        computed: dict[str, Computed] = {}
        for name, ((is_broken,), tokens, found) in zip(beams, told, strict=True):
            if is_broken:
                raise ValueError(NO_DISTRIBUTION)
            logprobs = tuple(itertools.takewhile(math.isfinite, found))  # what is banned comes last
            candidates = Candidates(tokens=tuple(map(int, tokens[: len(logprobs)])), logprobs=logprobs)
            computed[name] = Computed(candidates=candidates)
        return computed


def _told(*columns: torch.Tensor) -> list[list[list[float]]]:
    """Return columns `[n]` or `[n, k]` of a device, row by row, by one reading: integers are exact below 2**53."""
    wide = [column.double().view(len(column), -1) for column in columns]
    ends = list(itertools.accumulate(column.shape[1] for column in wide))
    return [
        [row[end - column.shape[1] : end] for column, end in zip(wide, ends, strict=True)]
        for row in torch.cat(wide, dim=1).tolist()
    ]


def _places(logits: torch.Tensor, batch: Batch, chosen: Container[str]) -> torch.Tensor:
    """Return the rows of the chosen draws among those of all draws."""
    return _there([place for place, name in enumerate(batch.draws) if name in chosen], logits.device)  # [n]


def _there(numbers: list[int], device: torch.device) -> torch.Tensor:
    return upload(torch.tensor(numbers, dtype=torch.int64), device)


def _reports(logits: torch.Tensor, draws: Sequence[Draw], tokens: Sequence[int]) -> dict[int, TokenLogprobs]:
    """Return what was asked of drawn tokens, by row, from the logits whose first rows are those of `draws`."""
    num_top = {row: draw.sampling.logprobs for row, draw in enumerate(draws) if draw.sampling.logprobs is not None}
    if not num_top:
        return {}
    rows = _there(list(num_top), logits.device)
    reports = _report(logits[rows], [tokens[row] for row in num_top], list(num_top.values()))
    return dict(zip(num_top, reports, strict=True))


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
    """Return how likely each row's token is, and its `num_top` likeliest.

    Raises ValueError for a row without a distribution.
    """
    found = logprobs(logits, _there(tokens, logits.device), max(num_top))
    is_whole = logits.amax(dim=-1).isfinite()
    told = _told(is_whole, found.logprob, found.rank, found.top_ids, found.top_logprobs)
    if not all(is_whole for (is_whole,), *_ in told):
        raise ValueError(NO_DISTRIBUTION)
    return [
        TokenLogprobs(
            token=token,
            logprob=logprob,
            rank=int(rank),
            top_tokens=tuple(map(int, top_ids[:count])),
            top_logprobs=tuple(top_logprobs[:count]),
        )
        for token, count, (_, (logprob,), (rank,), top_ids, top_logprobs) in zip(tokens, num_top, told, strict=True)
    ]
