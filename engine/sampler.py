"""From a batch's logits to a token per drawing sequence. Stateless: see `kernels/sampling.py`."""

from __future__ import annotations

import torch

from pagewire.engine.batch import Batch
from pagewire.kernels.backend import Backend


class Sampler:
    """Draws the tokens of a batch."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def draw(self, logits: torch.Tensor, batch: Batch) -> dict[str, int]:
        """Return a token per request from logits `[n, V]`; raises ValueError for a row without a distribution."""
        tokens = self._backend.sample(logits, batch.sampling)
        return dict(zip(batch.drawing, tokens, strict=True))
