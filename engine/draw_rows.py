"""How tokens are chosen for draws, as columns; and tokens that were drawn already and are yet to be waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagewire.engine.step import Draw
from pagewire.kernels.sampling_rows import SamplingRows

Drawn = Callable[[], list[int]]
"""Waits for tokens that were drawn with the logits, one for each row; ValueError for a row without a distribution."""


def rows_of(draws: Sequence[Draw]) -> SamplingRows:
    """Return how a token is chosen for each draw."""
    samplings = [draw.sampling for draw in draws]  # lists, since a generator takes twice as long for each row
    return SamplingRows(
        temperature=tuple([sampling.temperature for sampling in samplings]),
        top_k=tuple([sampling.top_k for sampling in samplings]),
        top_p=tuple([sampling.top_p for sampling in samplings]),
        min_p=tuple([sampling.min_p for sampling in samplings]),
        typical_p=tuple([sampling.typical_p for sampling in samplings]),
        seed=tuple([sampling.seed for sampling in samplings]),
        index=tuple([draw.index for draw in draws]),
        position=tuple([draw.position for draw in draws]),
    )
