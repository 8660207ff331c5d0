"""The plain torch backend: every op as its definition reads, quick enough for a CPU.

Satisfies `Backend`, which says what each op means. Holds no state. Invariant: no slot without a token reaches a sum,
neither through K nor through V (0 x NaN is NaN).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from pagewire.kernels import attention_plan, kv_elements, logit_edits, rope, sampling, streamed_attention
from pagewire.kernels.attention_plan import AttentionPlan, Chunk, DecodeGroup
from pagewire.kernels.backend import Add, Linear, NormedLinear
from pagewire.kernels.coded_weight import CodedWeight
from pagewire.kernels.decoder_stack import ComposedStack, DecoderStack, LayerWeights, Reduce, StackShape
from pagewire.kernels.head_norms import HeadNorms
from pagewire.kernels.logit_edits import LogitEdits
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.sampling_rows import SamplingRows
from pagewire.kernels.scaled_weight import Weight, plain
from pagewire.kernels.streamed_attention import Partial, StreamedPlan


class TorchBackend:
    """Every op in plain torch; see `Backend` for the contracts."""

    def linear(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        """Return the product with `weight` `[N, K]`, decoded once unless that is in codes."""
        if isinstance(weight, CodedWeight):
            return lambda x: weight.linear(x, bias)
        decoded = plain(weight)
        return lambda x: functional.linear(x, decoded, bias)

    def normed_linear(
        self, norm: torch.Tensor, eps: float, weight: Weight, bias: torch.Tensor | None, *, is_gated: bool = False
    ) -> NormedLinear:
        """Return the product behind a norm, op by op."""
        linear = self.linear(weight, bias)

        def compute(
            x: torch.Tensor, residual: torch.Tensor | None, add: Add | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            normed, total = self.rms_norm(x, norm, eps, residual)
            product = linear(normed)
            if add is not None:
                add(normed, product)
            return self.silu_and_mul(product) if is_gated else product, total

        return compute

    def decoder_stack(
        self, layers: Sequence[LayerWeights], shape: StackShape, reduce: Reduce | None = None
    ) -> DecoderStack:
        """Return the layers op by op."""
        return ComposedStack(self, layers, shape, reduce)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (normalised, x + residual)."""
        if residual is not None:
            x = x + residual
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        # Rounded before the weight is applied, as the models were trained.
        return normed.to(x.dtype) * weight, x

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up: `[T, 2 I]` -> `[T, I]`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def append_kv(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        pool: torch.Tensor,
        layer: int,
        slots: torch.Tensor,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        """Norm and rotate q and k, write k and v to their slots, return q."""
        if norms is not None:
            (q, _), (k, _) = self.rms_norm(q, norms.q, norms.eps), self.rms_norm(k, norms.k, norms.eps)
        self.write_kv(rope.rotate(k, cos, sin), v, pool, layer, slots)
        return rope.rotate(q, cos, sin)

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, pool: torch.Tensor, layer: int, slots: torch.Tensor) -> None:
        """Write k and v to their slots."""
        block_size = pool.shape[4]
        blocks, offsets = slots // block_size, slots % block_size  # [T] each
        pool[:, layer, 0][blocks, :, offsets] = kv_elements.encode(k, pool.dtype)  # [N, Hk, B, D] at [T, Hk, D]
        pool[:, layer, 1][blocks, :, offsets] = kv_elements.encode(v, pool.dtype)

    def plan_attention(self, ragged: Ragged, window: int, dtype: torch.dtype) -> object:
        """Prepare what all layers with this window share."""
        if ragged.spilled is not None:
            return StreamedPlan(ragged=ragged, window=window)
        return attention_plan.plan_attention(ragged, window, dtype)

    def paged_attention(
        self,
        q: torch.Tensor,
        pool: torch.Tensor,
        layer: int,
        plan: object,
        scale: float,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return attention of q `[T, Hq, D]` over the pool: `[T, Hq, D]`."""
        if isinstance(plan, StreamedPlan):
            return streamed_attention.attend(self, q, pool, layer, plan, scale, softcap, sinks)
        assert isinstance(plan, AttentionPlan)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        attention = _Attention(scale=scale, softcap=softcap, sinks=sinks)
        for group in plan.groups:
            out[group.rows] = _attend_group(q[group.rows], pool, layer, group, attention)
        for chunk in plan.chunks:
            _attend_chunk(q, pool, layer, chunk, attention, out)
        return out

    def partial_attention(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        first_query: int,
        first_key: int,
        window: int,
        scale: float,
        softcap: float,
    ) -> Partial:
        """Return attention of q `[T, Hq, D]` over kv `[2, Hk, n, D]` alone."""
        return streamed_attention.partial_attention(q, kv, first_query, first_key, window, scale, softcap)

    def edit_logits(self, logits: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
        """Return edited logits `[n, V]`."""
        return logit_edits.edit(logits, edits)

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> list[int]:
        """Return a token per row of logits `[n, V]`."""
        return sampling.sample(logits, rows)

    def copy_blocks(self, pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy whole blocks inside the pool."""
        pool[targets] = pool[sources]

    def gather_blocks(self, pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy of the blocks."""
        return pool.index_select(0, block_ids)  # contiguous, however the pool is strided

    def scatter_blocks(self, pool: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
        """Write blocks into the pool."""
        pool[block_ids] = blocks

    def zero_slots(self, pool: torch.Tensor, block_id: int, first_slot: int) -> None:
        """Zero the slots of one block from `first_slot` on."""
        pool[block_id, :, :, :, first_slot:] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """Attention of rows over gathered KV; the query heads of a KV head share its K and V."""

    scale: float
    softcap: float
    sinks: torch.Tensor | None  # [Hq]

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Attend q `[S, Hk, G, rows, D]` over k and v `[S, Hk, n, D]`; the mask broadcasts to `[S, Hk, rows, n]`."""
        if self.softcap or self.sinks is not None:
            return self._weighed(q, k, v, mask)
        num_sequences, num_kv_heads, group, num_rows, head_dim = q.shape
        if num_rows == 1:
            # The query heads of a KV head become rows: KV is read once, and no head is repeated.
            rows = q.view(num_sequences, num_kv_heads, group, head_dim)
        else:
            rows = q.view(num_sequences, num_kv_heads * group, num_rows, head_dim)
        return functional.scaled_dot_product_attention(
            rows, k, v, attn_mask=mask, scale=self.scale, enable_gqa=num_rows > 1
        )

    def _weighed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        scores = q.float() @ k.float().transpose(-1, -2)[:, :, None] * self.scale  # [S, Hk, G, rows, n]
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if mask is not None:
            scores = scores + (mask[:, :, None] if mask.dim() == 4 else mask)
        if self.sinks is not None:
            sinks = self.sinks.float().view(*q.shape[1:3], 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, sinks), dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., : k.shape[2]]
        return (weights @ v.float()[:, :, None]).to(q.dtype)


def _gather(pool: torch.Tensor, layer: int, block_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # One copy straight into heads-first order: [N, 2, Hk, B, D] -> [2, Hk, n, B, D].
    return kv_elements.decode(pool[:, layer].permute(1, 2, 0, 3, 4).index_select(2, block_ids), dtype)


def _attend_group(
    q: torch.Tensor, pool: torch.Tensor, layer: int, group: DecodeGroup, attention: _Attention
) -> torch.Tensor:
    num_rows, num_q_heads, head_dim = q.shape
    kv = _gather(pool, layer, group.block_ids, q.dtype)
    num_kv_heads = kv.shape[1]
    if group.unfilled is not None:
        kv.view(2, num_kv_heads, -1, head_dim).index_fill_(2, group.unfilled, 0)
    kv = kv.view(2, num_kv_heads, num_rows, -1, head_dim)[:, :, :, : group.num_slots]  # [2, Hk, S, n', D]
    out = attention(
        q.reshape(num_rows, num_kv_heads, num_q_heads // num_kv_heads, 1, head_dim),  # [S, Hk, G, 1, D]
        kv[0].transpose(0, 1),  # [S, Hk, n', D]
        kv[1].transpose(0, 1),
        group.mask,
    )
    return out.reshape(num_rows, num_q_heads, head_dim)


def _attend_chunk(
    q: torch.Tensor, pool: torch.Tensor, layer: int, chunk: Chunk, attention: _Attention, out: torch.Tensor
) -> None:
    kv = _gather(pool, layer, chunk.block_ids, q.dtype).flatten(2, 3)  # [2, Hk, M x B, D]
    _, num_q_heads, head_dim = q.shape
    num_kv_heads = kv.shape[1]
    for tile in chunk.tiles:
        rows = q[tile.rows].transpose(0, 1)  # [Hq, rows, D]
        attended = attention(
            rows.reshape(1, num_kv_heads, num_q_heads // num_kv_heads, -1, head_dim),  # [1, Hk, G, rows, D]
            kv[None, 0, :, tile.slots],  # [1, Hk, slots, D]
            kv[None, 1, :, tile.slots],
            tile.mask,
        )
        out[tile.rows] = attended.reshape(num_q_heads, -1, head_dim).transpose(0, 1)
