"""Runs a step on the device: tensors in, KV written, tokens out.

Knows the model and the pool's memory; knows nothing of queues or of who waits. Running a step again writes the same KV
to the same places, so a failed step may be retried in parts.
"""

from __future__ import annotations

import torch

from pagewire.engine.batch import Batch
from pagewire.engine.kv_cache import KVCache
from pagewire.engine.model.decoder import Decoder
from pagewire.engine.sampler import Sampler
from pagewire.engine.step import Grant, Step
from pagewire.kernels.backend import Backend


class ModelRunner:
    """Step -> Batch -> forward -> sampled tokens."""

    def __init__(self, decoder: Decoder, cache: KVCache, backend: Backend) -> None:
        self._decoder = decoder
        self._cache = cache
        self._backend = backend
        self._sampler = Sampler(backend)

    @torch.inference_mode()
    def run(self, step: Step) -> dict[str, int]:
        """Compute a step; return the token of each grant that draws, by request id."""
        batch = Batch.of(step, self._cache.layout.block_size, self._cache.pool.device)
        logits = self._decoder.forward(batch, self._cache.pool)  # [n, V]
        for grant in step.grants:
            if grant.seal:
                self._seal(grant)
        return self._sampler.draw(logits, batch) if batch.drawing else {}

    def _seal(self, grant: Grant) -> None:
        # What the tail block held before belongs to somebody else; it must not leave the pod.
        used = (grant.start + len(grant.tokens)) % self._cache.layout.block_size
        if used:
            self._backend.zero_slots(self._cache.pool, grant.block_ids[-1], used)
