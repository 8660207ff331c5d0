"""How to choose a token for each row of logits: a column per parameter; see `SamplingParams` for its meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """The columns of n rows."""

    temperature: tuple[float, ...]
    top_k: tuple[int, ...]
    top_p: tuple[float, ...]
    min_p: tuple[float, ...]
    typical_p: tuple[float, ...]
    seed: tuple[int, ...]
    index: tuple[int, ...]  # of the sequence in its request
    position: tuple[int, ...]  # of the token in the output

    def take(self, rows: Sequence[int]) -> SamplingRows:
        """Return some of the rows."""
        if len(rows) == len(self.seed):
            return self
        return SamplingRows(
            **{each.name: tuple(getattr(self, each.name)[row] for row in rows) for each in fields(self)}
        )
