"""The decoder all families share: pre-norm attention and a gated MLP over a paged KV pool.

Weights are tensors, or matrices in codes, fused where one product can do the work of several. Knows nothing of requests
or of files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from pagewire.engine.batch import Batch
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.kernels.backend import Backend
from pagewire.kernels.decoder_stack import LayerWeights, OnLayer, Reduce, StackBatch
from pagewire.kernels.rope import Rotary
from pagewire.kernels.scaled_weight import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All weights; with tied embeddings `head` is `embedding`, or what is made of it."""

    embedding: torch.Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [H]
    head: Weight | None  # [V, H]; None where another rank has it


class Decoder:
    """Computes a batch against the pool; without state of its own besides the weights, as its backend laid them out.

    With `reduce` it is one rank's part: `config` says what the rank has, and the pool is that of its heads.
    """

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, backend: Backend, reduce: Reduce | None = None
    ) -> None:
        self._norm_eps = config.norm_eps
        self._embedding = weights.embedding
        self._stack = backend.decoder_stack(weights.layers, config.stack_shape(), reduce)
        self._norm = weights.norm
        self._head = None if weights.head is None else backend.linear(weights.head, None)
        self._backend = backend
        self._rotary = Rotary(
            config.rope, config.head_dim, config.max_positions, weights.embedding.device, config.stored_head_dim
        )

    @property
    def arithmetic(self) -> str:
        """See `Model`: the layers' own, what is around them goes row by row."""
        return self._stack.arithmetic

    def forward(self, batch: Batch, pool: torch.Tensor, wrote: OnLayer | None = None) -> torch.Tensor:
        """Write the KV of the batch's tokens to the pool; return logits `[n, V]` of its `logit_rows`.

        Without a head they are `[0, V]`. `wrote` hears of each layer, in order, once the KV of that layer is in the
        pool.
        """
        cos, sin = self._rotary.cos_sin(batch.positions)
        rows = StackBatch(ragged=batch.ragged, slots=batch.slots, cos=cos, sin=sin, adapted=batch.adapted)
        hidden = functional.embedding(batch.token_ids, self._embedding)  # [T, H]
        hidden, residual = self._stack(hidden, rows, pool, wrote)
        if self._head is None:
            return hidden.new_empty(0, self._embedding.shape[0])
        if (drawn := batch.logit_rows) is not None:
            hidden, residual = hidden[drawn], residual[drawn]  # [n, H]
        normed, _ = self._backend.rms_norm(hidden, self._norm, self._norm_eps, residual)
        return self._head(normed)
