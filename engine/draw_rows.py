"""How tokens are chosen for draws, as columns; and tokens that were drawn already and are yet to be waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagewire.engine.step import Draw
from pagewire.kernels.sampling_rows import SamplingRows

Drawn = Callable[[], list[int]]
"""Waits for tokens that were drawn with the logits, one for each row; ValueError for a row without a distribution."""


def rows_of(draws: Sequence[Draw]) -> SamplingRows:
    """Return how a token is chosen for each draw."""
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
