"""The layers of a pre-norm decoder, composed of a backend's ops: attention and a gated MLP over a paged KV pool.

What a layer is stands here in plain words; a backend may compute the same in fewer pieces. Knows nothing of requests,
tokens or files. H is the hidden size, I the intermediate one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from pagewire.kernels import low_rank
from pagewire.kernels.head_norms import HeadNorms
from pagewire.kernels.low_rank import AdaptedRows, LayerAdapter
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.scaled_weight import Weight

if TYPE_CHECKING:
    from pagewire.kernels.backend import Add, Backend, Linear, NormedLinear

OnLayer = Callable[[int], None]
Reduce = Callable[[torch.Tensor], torch.Tensor]
"""One rank's part of `[T, H]` to the sum of all ranks' parts, on each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer; a fused matrix holds its parts in the order named. `adapters` has a part of each adapter."""

    input_norm: torch.Tensor  # [H]
    qkv: Weight  # [(Hq + 2 Hk) D, H]
    qkv_bias: torch.Tensor | None  # [(Hq + 2 Hk) D]
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    o: Weight  # [H, Hq D]
    o_bias: torch.Tensor | None  # [H]
    post_norm: torch.Tensor  # [H]
    gate_up: Weight  # [2 I, H]
    gate_up_bias: torch.Tensor | None  # [2 I]
    down: Weight  # [H, I]
    down_bias: torch.Tensor | None  # [H]
    adapters: tuple[LayerAdapter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StackShape:
    """What the layers have in common; `windows` has a sliding window for each, 0 for full attention."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    scale: float
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackBatch:
    """What all layers see of a batch; rows that `adapted` does not name have no adapter."""

    ragged: Ragged
    slots: torch.Tensor  # [T] int64
    cos: torch.Tensor  # [T, D / 2] fp32
    sin: torch.Tensor  # [T, D / 2] fp32
    adapted: tuple[AdaptedRows, ...] = ()


class DecoderStack(Protocol):
    """Computes all layers; without state of its own besides the weights."""

    @property
    def arithmetic(self) -> str:
        """The name of the code, where a row's bits depend on its own sequence alone; "" where on the batch as well."""
        ...

    def __call__(
        self, hidden: torch.Tensor, batch: StackBatch, pool: torch.Tensor, on_layer: OnLayer | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the KV of `[T, H]` to the pool, return the last layer's output and what it is to be added to.

        `on_layer` hears of each layer, in order, once its KV is in the pool. `hidden` may be overwritten.
        """
        ...


class ComposedStack:
    """Layers op by op.

    With `reduce` they are one rank's part: its heads, and its share of the intermediate size. A layer then sums twice
    over the ranks, behind o and behind down, and is told of once the first of these is done: all ranks' KV is there.
    """

    def __init__(
        self, backend: Backend, layers: Sequence[LayerWeights], shape: StackShape, reduce: Reduce | None = None
    ) -> None:
        self._backend = backend
        self._reduce = reduce or _alone
        self._shape = shape
        self._layers = tuple(_Layer.of(weights, backend, shape.norm_eps) for weights in layers)

    @property
    def arithmetic(self) -> str:
        """Libraries choose how to sum by the shape of the whole."""
        return ""

    def __call__(
        self, hidden: torch.Tensor, batch: StackBatch, pool: torch.Tensor, on_layer: OnLayer | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DecoderStack`."""
        backend, windows = self._backend, self._shape.windows
        plans = {window: backend.plan_attention(batch.ragged, window, hidden.dtype) for window in sorted(set(windows))}
        residual: torch.Tensor | None = None
        for number, layer in enumerate(self._layers):
            qkv, residual = layer.qkv(hidden, residual, layer.add("qkv", batch))
            attended = self._attended(qkv, number, batch, pool, plans[windows[number]])
            hidden = self._reduce(_product(layer.o, attended, layer.add("o", batch)))
            if on_layer is not None:
                on_layer(number)
            inner, residual = layer.gate_up(hidden, residual, layer.add("gate_up", batch))
            hidden = self._reduce(_product(layer.down, inner, layer.add("down", batch)))
        assert residual is not None
        return hidden, residual

    def _attended(
        self, qkv: torch.Tensor, number: int, batch: StackBatch, pool: torch.Tensor, plan: object
    ) -> torch.Tensor:
        """Return attention of one layer: `[T, Hq D]`."""
        shape, backend, norms = self._shape, self._backend, self._layers[number].norms
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
        q, k, v = torch.split(heads, [shape.num_q_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)  # [T, H*, D]
        q = backend.append_kv(q, k, v, batch.cos, batch.sin, pool, number, batch.slots, norms)
        return backend.paged_attention(q, pool, number, plan, shape.scale).flatten(1)


def _alone(part: torch.Tensor) -> torch.Tensor:
    return part


def _product(linear: Linear, x: torch.Tensor, add: Add | None) -> torch.Tensor:
    product = linear(x)
    if add is not None:
        add(x, product)
    return product


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer as its backend computes it."""

    qkv: NormedLinear
    norms: HeadNorms | None
    o: Linear
    gate_up: NormedLinear  # gated: [T, H] to [T, I]
    down: Linear
    adapters: tuple[LayerAdapter, ...]

    def add(self, product: str, batch: StackBatch) -> Add | None:
        """Return what adds the batch's adapters to one of the products, None where it has none."""
        if not batch.adapted:
            return None
        parts = [getattr(adapter, product) for adapter in self.adapters]
        return functools.partial(low_rank.add, parts=parts, adapted=batch.adapted)

    @classmethod
    def of(cls, weights: LayerWeights, backend: Backend, eps: float) -> _Layer:
        q_norm, k_norm = weights.q_norm, weights.k_norm
        return cls(
            qkv=backend.normed_linear(weights.input_norm, eps, weights.qkv, weights.qkv_bias),
            norms=None if q_norm is None or k_norm is None else HeadNorms(q=q_norm, k=k_norm, eps=eps),
            o=backend.linear(weights.o, weights.o_bias),
            gate_up=backend.normed_linear(weights.post_norm, eps, weights.gate_up, weights.gate_up_bias, is_gated=True),
            down=backend.linear(weights.down, weights.down_bias),
            adapters=weights.adapters,
        )
