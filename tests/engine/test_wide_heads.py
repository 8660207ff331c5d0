"""Heads that are no whole vectors, in layers whose heads are: the same scores and the same outputs."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.kv_layout import stored_head_dim
from pagewire.engine.model.wide_heads import widened
from pagewire.kernels.decoder_stack import LayerWeights
from pagewire.kernels.rope import Rope, Rotary, rotate
from pagewire.kernels.scaled_weight import ScaledWeight, plain

HIDDEN = 48


def layer_of(head_dim: int, num_q_heads: int, num_kv_heads: int, *, quantised: bool, biased: bool) -> LayerWeights:
    rows, columns = (num_q_heads + 2 * num_kv_heads) * head_dim, num_q_heads * head_dim
    some, kept = torch.randn, ScaledWeight.of if quantised else torch.clone
    return LayerWeights(
        input_norm=some(HIDDEN), qkv=kept(some(rows, HIDDEN)), qkv_bias=some(rows) if biased else None, q_norm=None,
        k_norm=None, o=kept(some(HIDDEN, columns)), o_bias=None, post_norm=some(HIDDEN),
        gate_up=some(32, HIDDEN), gate_up_bias=None, down=some(HIDDEN, 16), down_bias=None,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    head_dim=st.sampled_from([4, 8, 20, 72, 100]), num_q_heads=st.integers(1, 4), num_kv_heads=st.integers(1, 2),
    quantised=st.booleans(), biased=st.booleans(), scaling=st.sampled_from(["default", "dynamic", "yarn"]),
)  # fmt: skip
def test_scores_and_outputs_are_the_same(
    head_dim: int, num_q_heads: int, num_kv_heads: int, quantised: bool, biased: bool, scaling: str
) -> None:
    torch.manual_seed(head_dim)
    narrow = layer_of(head_dim, num_q_heads, num_kv_heads, quantised=quantised, biased=biased)
    wide, rotated = stored_head_dim(head_dim), num_q_heads + num_kv_heads
    layer = widened(narrow, head_dim, wide)
    assert isinstance(layer.qkv, ScaledWeight) == isinstance(layer.o, ScaledWeight) == quantised
    x, positions = torch.randn(5, HIDDEN), torch.arange(30, 35)
    rope = Rope(theta=100.0, scaling=scaling, factor=4.0, original_max_positions=32)

    def heads(one: LayerWeights, dim: int) -> torch.Tensor:
        made = (x @ plain(one.qkv).t() + (0 if one.qkv_bias is None else one.qkv_bias)).view(5, -1, dim)
        cos, sin = Rotary(rope, head_dim, 64, torch.device("cpu"), dim).cos_sin(positions)
        return torch.cat((rotate(made[:, :rotated], cos, sin), made[:, rotated:]), dim=1)  # [T, Hq + 2 Hk, D]

    before, after = heads(narrow, head_dim), heads(layer, wide)
    torch.testing.assert_close(
        torch.einsum("thd,shd->hts", after, after), torch.einsum("thd,shd->hts", before, before), rtol=1e-5, atol=1e-3
    )
    outputs = [part[:, :num_q_heads].flatten(1) @ plain(one.o).t() for part, one in ((before, narrow), (after, layer))]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-3)
    untouched = {"qkv", "qkv_bias", "o"}
    for field in dataclasses.fields(LayerWeights):
        if field.name not in untouched:
            assert getattr(layer, field.name) is getattr(narrow, field.name)
