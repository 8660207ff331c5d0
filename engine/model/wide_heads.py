"""Attention weights for heads of whole vectors: what a head's width lacks of that is zeros, which add nothing.

A pool keeps heads as wide as `stored_head_dim` says. Zeros go behind each half of a head, since rope turns the first
half with the second. Knows weights alone; nothing of how they are laid out for a processor.
"""

from __future__ import annotations

import dataclasses

import torch

from pagewire.kernels.coded_weight import CodedWeight
from pagewire.kernels.decoder_stack import LayerWeights
from pagewire.kernels.low_rank import LayerAdapter
from pagewire.kernels.scaled_weight import ScaledWeight, Stored


def widened(layer: LayerWeights, head_dim: int, wide: int) -> LayerWeights:
    """Return a layer of heads `head_dim` wide as one of heads `wide` wide, whose scores and outputs are the same.

    Its heads are not normed: a norm would count the zeros.
    """
    assert layer.q_norm is None
    assert layer.k_norm is None
    qkv, o = layer.qkv, layer.o
    assert not isinstance(qkv, CodedWeight)
    assert not isinstance(o, CodedWeight)
    return dataclasses.replace(
        layer,
        qkv=_rows(qkv, head_dim, wide),
        qkv_bias=None if layer.qkv_bias is None else _padded(layer.qkv_bias, head_dim, wide),
        o=_columns(o, head_dim, wide),
        adapters=tuple(_widened(adapter, head_dim, wide) for adapter in layer.adapters),
    )


def _widened(adapter: LayerAdapter, head_dim: int, wide: int) -> LayerAdapter:
    qkv, o = adapter.qkv, adapter.o
    return dataclasses.replace(
        adapter,
        qkv=None if qkv is None else dataclasses.replace(qkv, up=_padded(qkv.up, head_dim, wide)),
        o=None if o is None else dataclasses.replace(o, down=_padded(o.down.t(), head_dim, wide).t().contiguous()),
    )


def _padded(x: torch.Tensor, head_dim: int, wide: int) -> torch.Tensor:
    """Return `[H D, ...]` as `[H wide, ...]`."""
    halves = x.view(-1, head_dim // 2, *x.shape[1:])  # [2 H, D / 2, ...]
    out = x.new_zeros(halves.shape[0], wide // 2, *x.shape[1:])
    out[:, : head_dim // 2] = halves
    return out.flatten(0, 1)


def _rows(weight: Stored, head_dim: int, wide: int) -> Stored:
    if isinstance(weight, ScaledWeight):
        codes, scales = (_padded(x, head_dim, wide) for x in (weight.codes, weight.scales))
        return ScaledWeight(codes, scales, weight.dtype)
    return _padded(weight, head_dim, wide)


def _columns(weight: Stored, head_dim: int, wide: int) -> Stored:
    rows = (weight.codes if isinstance(weight, ScaledWeight) else weight).t()
    columns = _padded(rows, head_dim, wide).t().contiguous()
    return dataclasses.replace(weight, codes=columns) if isinstance(weight, ScaledWeight) else columns
