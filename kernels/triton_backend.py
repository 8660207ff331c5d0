"""The CUDA backend: every op in Triton but the products of many rows, those in torch, unless their weight is codes.

Satisfies `Backend`, which says what each op means; `gpu/` says how they are computed. What lies in host memory (the
tier behind the pool) is moved by torch. Importing this file imports triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn import functional

from pagewire.kernels.backend import Add, Linear, NormedLinear
from pagewire.kernels.gpu import (
    append_kv,
    logit_edits,
    paged_attention,
    rms_norm,
    sampling,
    scaled_linear,
    silu_and_mul,
    small_linear,
)
from pagewire.kernels.gpu import blocks as moves
from pagewire.kernels.gpu.paged_attention import AttentionPlan
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.head_norms import HeadNorms
from pagewire.kernels.logit_edits import LogitEdits
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.sampling_columns import SamplingColumns
from pagewire.kernels.sampling_rows import SamplingRows
from pagewire.kernels.scaled_weight import ScaledWeight, Weight
from pagewire.kernels.streamed_attention import Partial
from pagewire.kernels.torch_backend import TorchBackend


class TritonBackend(TorchBackend):
    """Triton's ops on one device; see `Backend` for the contracts."""

    def __init__(self, device: torch.device, processor: Processor) -> None:
        self._device = device
        self._processor = processor

    @classmethod
    def of(cls, device: torch.device) -> TritonBackend:
        """Return the backend of a CUDA device."""
        return cls(device, Processor.of(device))

    def linear(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        """Return the product with `weight` `[N, K]`, of few rows or of many."""
        many = self._scaled(weight, bias) if isinstance(weight, ScaledWeight) else super().linear(weight, bias)

        def compute(x: torch.Tensor) -> torch.Tensor:
            return small_linear.small_linear(x, weight, bias, self._processor) if _is_few(x) else many(x)

        return compute

    def _scaled(self, weight: ScaledWeight, bias: torch.Tensor | None) -> Linear:
        """Return the product with a weight that stays codes."""

        def compute(x: torch.Tensor) -> torch.Tensor:
            if 0 < x.shape[0] <= scaled_linear.MOST_ROWS:
                return scaled_linear.scaled_linear(x, weight, bias, self._processor)
            return functional.linear(x, scaled_linear.decode(weight, overlaps=self._processor.overlaps), bias)

        return compute

    def normed_linear(
        self, norm: torch.Tensor, eps: float, weight: Weight, bias: torch.Tensor | None, *, is_gated: bool = False
    ) -> NormedLinear:
        """Return the product behind a norm, of few rows by one kernel unless something is added to it."""
        many = super().normed_linear(norm, eps, weight, bias, is_gated=is_gated)

        def compute(
            x: torch.Tensor, residual: torch.Tensor | None, add: Add | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            if add is not None or not _is_few(x):
                return many(x, residual, add)
            return small_linear.normed_linear(x, residual, norm, eps, weight, bias, self._processor, is_gated=is_gated)

        return compute

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (normalised, x + residual)."""
        return rms_norm.rms_norm(x, weight, eps, residual, overlaps=self._processor.overlaps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up: `[T, 2 I]` -> `[T, I]`."""
        return silu_and_mul.silu_and_mul(gate_up, overlaps=self._processor.overlaps)

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
        """Norm and rotate q and k, write k and v to their slots, return q; a row of a negative slot is kept nowhere."""
        overlaps = self._processor.overlaps
        return append_kv.append_kv(q, k, v, cos, sin, pool, layer, slots, norms, overlaps=overlaps)

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, pool: torch.Tensor, layer: int, slots: torch.Tensor) -> None:
        """Write k and v to their slots."""
        append_kv.write_kv(k, v, pool, layer, slots, overlaps=self._processor.overlaps)

    def plan_attention(self, ragged: Ragged, window: int, dtype: torch.dtype) -> object:
        """Prepare what all layers with this window share."""
        if ragged.spilled is not None:
            return super().plan_attention(ragged, window, dtype)
        return paged_attention.plan_attention(ragged, window, self._processor)

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
        if not isinstance(plan, AttentionPlan):
            return super().paged_attention(q, pool, layer, plan, scale, softcap, sinks)
        return paged_attention.paged_attention(q, pool, layer, plan, scale, softcap, sinks)

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
        return paged_attention.partial_attention(q, kv, first_query, first_key, window, scale, softcap, self._processor)

    def edit_logits(self, logits: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
        """Return edited logits `[n, V]`."""
        return logit_edits.edit(logits, edits)

    def sample_on_device(self, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
        """Return a token per row of logits `[n, V]`: `[n]` int64 where they are, -1 for a row without a maximum."""
        return sampling.sample(logits.float(), rows, overlaps=self._processor.overlaps)

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> list[int]:
        """Return a token per row of logits `[n, V]`."""
        return self.send_tokens(self.sample_on_device(logits, rows))()

    def draw(self, logits: torch.Tensor, columns: SamplingColumns, out: torch.Tensor) -> None:
        """Write a token per row of logits `[n, V]` fp32 to out `[n]`, whatever is asked but typical-p."""
        sampling.draw(logits, columns, cuts=True, out=out, overlaps=self._processor.overlaps)

    def send_tokens(self, tokens: torch.Tensor) -> Callable[[], list[int]]:
        """Send tokens `[n]`, as they are now, to the host; what is returned waits for them."""
        if not tokens.is_cuda:
            return functools.partial(_checked, tokens.tolist())
        here = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        here.copy_(tokens, non_blocking=True)
        sent = torch.cuda.current_stream(tokens.device).record_event()

        def wait() -> list[int]:
            sent.synchronize()
            return _checked(here.tolist())

        return wait

    def copy_blocks(self, pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy whole blocks inside the pool."""
        moves.copy_blocks(pool, sources, targets)

    def gather_blocks(self, pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy of the blocks."""
        here = pool.device.type == self._device.type
        return moves.gather_blocks(pool, block_ids) if here else super().gather_blocks(pool, block_ids)

    def scatter_blocks(self, pool: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
        """Write blocks into the pool."""
        here = pool.device.type == self._device.type
        scatter = moves.scatter_blocks if here else super().scatter_blocks
        scatter(pool, block_ids, blocks)

    def zero_slots(self, pool: torch.Tensor, block_id: int, first_slot: int) -> None:
        """Zero the slots of one block from `first_slot` on."""
        moves.zero_slots(pool, block_id, first_slot)


def _checked(tokens: list[int]) -> list[int]:
    if sampling.NO_TOKEN in tokens:
        raise ValueError(f"row {tokens.index(sampling.NO_TOKEN)} of the logits has no finite maximum")
    return tokens


def _is_few(x: torch.Tensor) -> bool:
    return 0 < x.shape[0] <= small_linear.MOST_ROWS
