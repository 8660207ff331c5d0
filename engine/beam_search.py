"""One request's beam search: what its beams may say next goes in, what they say and what they found comes out.

    total(beam, token) = total(beam) + log probability(token after beam)
    score(hypothesis)  = total / length**length_penalty           length: tokens of output, the one that ended it too

Of all continuations of all beams the best by total are taken: of the first `width`, those that end are hypotheses, and
the `width` best that do not end are the beams of the next step. The best `width` hypotheses are kept, by score. The
semantics, `early_stopping` included, are those of transformers' `generate(num_beams=...)`; see `EarlyStopping`.

Pure: no tensors, no blocks. Knows beams by their index. Invariants: the beams differ in their tokens; every beam of one
step is continued, or dropped, in the same `advance`; equal totals are ordered by beam and token, so equal inputs have
equal outcomes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from pagewire.core.sampling import EarlyStopping, FinishReason, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The likeliest next tokens of one beam and their log probabilities, falling; no token that is impossible."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The beam `index` of the next step is the beam `parent` of this one with `token` behind it."""

    index: int
    parent: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A finished output, `total` its log probability."""

    tokens: tuple[int, ...]
    total: float
    score: float
    finish_reason: FinishReason


@dataclass(slots=True, kw_only=True)
class BeamSearch:
    """The beams of a request that have begun as one, index 0.

    `limit` is how many tokens an output may have, at least 1; `ends` are the tokens that end one.
    """

    width: int
    num_results: int
    length_penalty: float
    early_stopping: EarlyStopping
    limit: int
    ends: Set[int]
    _totals: dict[int, float] = field(default_factory=lambda: {0: 0.0})  # of the live beams, by index
    _heard: dict[int, Candidates] = field(default_factory=dict)
    _finished: list[Hypothesis] = field(default_factory=list)  # the best first, `width` at most

    @classmethod
    def of(cls, sampling: SamplingParams, limit: int, eos_token_ids: Set[int]) -> BeamSearch:
        """Return the search that `sampling` asks for."""
        return cls(
            width=sampling.num_beams,
            num_results=sampling.n,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            limit=limit,
            ends=frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_token_ids),
        )

    @property
    def num_candidates(self) -> int:
        """Tokens that matter after one beam: `width` that do not end, behind those that do."""
        return self.width + len(self.ends)

    def hear(self, index: int, candidates: Candidates) -> None:
        """Take in what may follow a beam; said again it replaces what was said."""
        self._heard[index] = candidates

    def advance(self, outputs: Mapping[int, Sequence[int]]) -> list[Extension]:
        """Return the beams of the next step, by index; none when the search is over.

        `outputs` are the live beams' tokens so far, equally many each; all of them have been heard. A beam's first
        continuation keeps its index.
        """
        length = 1 + len(next(iter(outputs.values())))
        best = self._best(outputs)
        going: list[tuple[float, int, int]] = []
        for rank, (total, index, token) in enumerate(best):
            if token in self.ends or length >= self.limit:
                if rank < self.width:
                    self._finish((*outputs[index], token), total)
            elif len(going) < self.width:
                going.append((total, index, token))
        if not going or self._is_over(going[0][0], length):
            return []
        extensions = self._extensions([(parent, token) for _, parent, token in going])
        self._totals = {each.index: total for each, (total, _, _) in zip(extensions, going, strict=True)}
        self._heard.clear()
        return sorted(extensions, key=lambda each: each.index)

    def results(self) -> list[Hypothesis]:
        """Return the best hypotheses, the best first; fewer than asked for only where no more are possible."""
        return self._finished[: self.num_results]

    def _best(self, indices: Iterable[int]) -> list[tuple[float, int, int]]:
        """Return total, beam and token of the continuations that may matter, the best first."""
        every = (
            (self._totals[index] + logprob, index, token)
            for index in indices
            for token, logprob in zip(self._heard[index].tokens, self._heard[index].logprobs, strict=True)
        )
        most = self.width * (1 + len(self.ends))  # so many may end before `width` do not
        return heapq.nsmallest(most, every, key=lambda each: (-each[0], each[1], each[2]))

    def _finish(self, tokens: tuple[int, ...], total: float) -> None:
        reason = FinishReason.STOP if tokens[-1] in self.ends else FinishReason.LENGTH
        score = self._score(total, len(tokens))
        self._finished.append(Hypothesis(tokens=tokens, total=total, score=score, finish_reason=reason))
        self._finished.sort(key=lambda each: -each.score)  # stable: of equal ones the earlier is the better
        del self._finished[self.width :]

    def _score(self, total: float, length: int) -> float:
        return total / math.pow(length, self.length_penalty)

    def _is_over(self, best_total: float, length: int) -> bool:
        """Return whether beams of `length` tokens, the best of them at `best_total`, have nothing to add."""
        if len(self._finished) < self.width:
            return False
        if self.early_stopping is EarlyStopping.TRUE:
            return True
        if self.early_stopping is EarlyStopping.NEVER and self.length_penalty > 0.0:
            length = self.limit
        return self._score(best_total, length) <= self._finished[-1].score

    def _extensions(self, going: Sequence[tuple[int, int]]) -> list[Extension]:
        """Give each continued beam's first continuation its index, and the others the indices that are left."""
        kept = {parent for parent, _ in going}
        free = iter([index for index in range(self.width) if index not in kept])
        extensions = []
        for parent, token in going:
            index = parent if parent in kept else next(free)
            kept.discard(parent)
            extensions.append(Extension(index=index, parent=parent, token=token))
        return extensions
