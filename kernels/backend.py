"""The ops that a model is made of: one public signature each, whatever runs them.

A backend is a value without state. Shapes: `T` rows, `S` sequences, `Hq`/`Hk` query and KV heads, `D` head dim, `B`
block size, `N` blocks, `L` layers. The KV pool is `[N, L, 2, Hk, B, D]`; slot `i` is slot `i % B` of block `i // B`.
Its dtype is its own, and says how `kv_elements.py` keeps K and V in it; quantised, the last axis is wider.
It may be a strided view, heads outermost in memory: only the last two axes are sure to be contiguous.
Every index into the pool is 64-bit. Slots that hold no token may hold anything, NaN included, and never reach a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pagewire.kernels.decoder_stack import DecoderStack, LayerWeights, Reduce, StackShape
from pagewire.kernels.head_norms import HeadNorms
from pagewire.kernels.logit_edits import LogitEdits
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.sampling_rows import SamplingRows
from pagewire.kernels.scaled_weight import Weight
from pagewire.kernels.streamed_attention import Partial

Linear = Callable[[torch.Tensor], torch.Tensor]
"""Rows `[T, K]` to `[T, N]`, in the dtype of both rows and weight."""
Add = Callable[[torch.Tensor, torch.Tensor], None]
"""Adds to a product `[T, N]` of rows `[T, K]` what is theirs besides."""


class NormedLinear(Protocol):
    """A product behind a norm."""

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, add: Add | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (what becomes of norm(x + residual), x + residual) for rows x `[T, K]`.

        What `add` has is added to the product, before a gate.
        """
        ...


class Backend(Protocol):
    """What a model needs from a device. A plan is for the backend that made it."""

    def linear(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        """Return the product with `weight` `[N, K]`, plus `bias` `[N]`; the weight may be laid out anew for it.

        Of a `ScaledWeight` it is that with the weight that it stands for, decoded or not; of a `CodedWeight` its own.
        """
        ...

    def normed_linear(
        self, norm: torch.Tensor, eps: float, weight: Weight, bias: torch.Tensor | None, *, is_gated: bool = False
    ) -> NormedLinear:
        """Return `linear` behind `rms_norm` with `norm` `[K]`, and with `silu_and_mul` behind it where it is gated."""
        ...

    def decoder_stack(
        self, layers: Sequence[LayerWeights], shape: StackShape, reduce: Reduce | None = None
    ) -> DecoderStack:
        """Return the layers of a decoder, in as few pieces as the device likes; weights may be laid out anew.

        With `reduce` they are one rank's part; see `ComposedStack`.
        """
        ...

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm(x + residual) * weight, x + residual) over the last axis; statistics are in fp32."""
        ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up for `[T, 2 I]` whose first half is gate: `[T, I]`."""
        ...

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
        """Rotate q `[T, Hq, D]` and k `[T, Hk, D]`, write k and v `[T, Hk, D]` to `slots`; return rotated q.

        `cos` and `sin` are `[T, D / 2]` fp32, and so is the rotation. `slots` is `[T]` int64, no slot twice. With
        `norms`, q and k are normed head by head before.
        """
        ...

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, pool: torch.Tensor, layer: int, slots: torch.Tensor) -> None:
        """Write k and v `[T, Hk, D]`, rotated already or never, to `slots`, which is `[T]` int64, no slot twice."""
        ...

    def plan_attention(self, ragged: Ragged, window: int, dtype: torch.dtype) -> object:
        """Prepare what layers with this window share; `window` counts the visible tokens, self included, 0 is all.

        `dtype` is that of the queries.
        """
        ...

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
        """Return causal attention of q `[T, Hq, D]` over each row's own sequence in the pool: `[T, Hq, D]`.

        D is what the pool keeps of a head: whole vectors (`stored_head_dim`).

        Scores s are q k `scale`; with a `softcap` c they become c tanh(s / c), before the mask. `sinks` `[Hq]` adds
        exp(sink) to the sum that a head's weights are divided by, so that they sum to less than one.
        """
        ...

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
        """Return causal attention of q `[T, Hq, D]` over kv `[2, Hk, n, D]` alone, and the logs of its sums, in fp32.

        Row t is token `first_query` + t of its sequence, key i is token `first_key` + i; `window`, `scale` and
        `softcap` are as above. With s the scores of the keys that a row sees: out = softmax(s) v, log_sum = log sum
        exp(s).
        """
        ...

    def edit_logits(self, logits: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
        """Return logits `[n, V]` in fp32 with what their rows ask for done to them; the given ones stay as they are."""
        ...

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> list[int]:
        """Return a token per row of logits `[n, V]`; a row's token depends on that row alone.

        Raises ValueError for a row without a finite maximum: the model produced no distribution.
        """
        ...

    def copy_blocks(self, pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy whole blocks inside the pool; both are `[n]` int64, and no target is a source."""
        ...

    def gather_blocks(self, pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy of the blocks: `[n, L, 2, Hk, B, D]`."""
        ...

    def scatter_blocks(self, pool: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
        """Write `[n, L, 2, Hk, B, D]` into the pool's blocks; no id twice."""
        ...

    def zero_slots(self, pool: torch.Tensor, block_id: int, first_slot: int) -> None:
        """Zero the slots of one block from `first_slot` on, in all layers."""
        ...
