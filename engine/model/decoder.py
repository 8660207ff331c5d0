"""The decoder all families share: pre-norm attention and a gated MLP over a paged KV pool.

Weights are plain tensors, fused where one product can do the work of several. Knows nothing of requests or of files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from pagewire.engine.batch import Batch
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.kernels import rope
from pagewire.kernels.backend import Backend, Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. H is the hidden size, I the intermediate one; a fused matrix holds its parts in the order named."""

    input_norm: torch.Tensor  # [H]
    qkv: torch.Tensor  # [(Hq + 2 Hk) D, H]
    qkv_bias: torch.Tensor | None  # [(Hq + 2 Hk) D]
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    o: torch.Tensor  # [H, Hq D]
    o_bias: torch.Tensor | None  # [H]
    post_norm: torch.Tensor  # [H]
    gate_up: torch.Tensor  # [2 I, H]
    gate_up_bias: torch.Tensor | None  # [2 I]
    down: torch.Tensor  # [H, I]
    down_bias: torch.Tensor | None  # [H]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All weights; with tied embeddings `head` is `embedding`."""

    embedding: torch.Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [H]
    head: torch.Tensor  # [V, H]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer as its backend computes it."""

    input_norm: torch.Tensor  # [H]
    qkv: Linear
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    o: Linear
    post_norm: torch.Tensor  # [H]
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, weights: LayerWeights, backend: Backend) -> _Layer:
        return cls(
            input_norm=weights.input_norm,
            qkv=backend.linear(weights.qkv, weights.qkv_bias),
            q_norm=weights.q_norm,
            k_norm=weights.k_norm,
            o=backend.linear(weights.o, weights.o_bias),
            post_norm=weights.post_norm,
            gate_up=backend.linear(weights.gate_up, weights.gate_up_bias),
            down=backend.linear(weights.down, weights.down_bias),
        )


class Decoder:
    """Computes a batch against the pool; without state of its own besides the weights, as its backend laid them out."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, backend: Backend) -> None:
        self._config = config
        self._embedding = weights.embedding
        self._layers = tuple(_Layer.of(layer, backend) for layer in weights.layers)
        self._norm = weights.norm
        self._head = backend.linear(weights.head, None)
        self._backend = backend
        self._frequencies = rope.inverse_frequencies(config.rope, config.head_dim)  # [D / 2]
        self._scale = config.head_dim**-0.5

    def forward(self, batch: Batch, pool: torch.Tensor, wrote: Callable[[int], None] | None = None) -> torch.Tensor:
        """Write the KV of the batch's tokens to the pool; return fp32 logits `[n, V]` of its `logit_rows`.

        `wrote` hears of each layer, in order, once the KV of that layer is in the pool.
        """
        config, backend = self._config, self._backend
        cos, sin = rope.cos_sin(self._frequencies, batch.positions)
        plans = {
            window: backend.plan_attention(batch.ragged, window, pool.dtype) for window in sorted(set(config.windows))
        }
        hidden = functional.embedding(batch.token_ids, self._embedding)  # [T, H]
        residual: torch.Tensor | None = None
        for number, layer in enumerate(self._layers):
            normed, residual = backend.rms_norm(hidden, layer.input_norm, config.norm_eps, residual)
            hidden = self._attention(normed, number, layer, batch, pool, plans[config.windows[number]], cos, sin)
            if wrote is not None:
                wrote(number)
            normed, residual = backend.rms_norm(hidden, layer.post_norm, config.norm_eps, residual)
            hidden = layer.down(backend.silu_and_mul(layer.gate_up(normed)))
        assert residual is not None
        rows = batch.logit_rows
        normed, _ = backend.rms_norm(hidden[rows], self._norm, config.norm_eps, residual[rows])
        return self._head(normed).float()

    def _attention(
        self,
        x: torch.Tensor,
        number: int,
        layer: _Layer,
        batch: Batch,
        pool: torch.Tensor,
        plan: object,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        config, backend = self._config, self._backend
        qkv = layer.qkv(x).view(x.shape[0], -1, config.head_dim)
        q, k, v = torch.split(qkv, [config.num_q_heads, config.num_kv_heads, config.num_kv_heads], dim=1)  # [T, H*, D]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, _ = backend.rms_norm(q, layer.q_norm, config.norm_eps)
            k, _ = backend.rms_norm(k, layer.k_norm, config.norm_eps)
        q = backend.append_kv(q, k, v, cos, sin, pool, number, batch.slots)
        attended = backend.paged_attention(q, pool, number, plan, self._scale)  # [T, Hq, D]
        return layer.o(attended.flatten(1))
