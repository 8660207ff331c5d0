"""The shape of a pre-norm decoder, whatever family it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.kernels.decoder_stack import StackShape
from pagewire.kernels.rope import KNOWN_SCALINGS, Rope

HFConfig = Mapping[str, Any]  # a config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes and switches of one decoder. `windows` has a sliding window per layer, 0 for full attention."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    max_positions: int
    tied_embeddings: bool
    windows: tuple[int, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def kv_layout(self, block_size: int, dtype: str, order: BlockOrder = BlockOrder.LAYER_OUTER) -> KVLayout:
        """Return the layout of this model's KV."""
        return KVLayout(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=block_size,
            dtype=dtype,
            order=order,
        )

    def stack_shape(self) -> StackShape:
        """Return what its layers have in common."""
        return StackShape(
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            norm_eps=self.norm_eps,
            scale=self.head_dim**-0.5,
            windows=self.windows,
        )


def common(hf: HFConfig, **switches: Any) -> DecoderConfig:
    """Return the decoder that the fields of all families describe; raises ValueError on what we do not honour."""
    activation = hf.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act {activation!r} is not supported; the known one is silu")
    num_heads, num_layers = int(hf["num_attention_heads"]), int(hf["num_hidden_layers"])
    fields: dict[str, Any] = {
        "vocab_size": int(hf["vocab_size"]),
        "hidden_size": int(hf["hidden_size"]),
        "intermediate_size": int(hf["intermediate_size"]),
        "num_layers": num_layers,
        "num_q_heads": num_heads,
        "num_kv_heads": int(hf.get("num_key_value_heads") or num_heads),
        "head_dim": int(hf.get("head_dim") or int(hf["hidden_size"]) // num_heads),
        "norm_eps": float(hf.get("rms_norm_eps", 1e-6)),
        "rope": rope_of(hf),
        "max_positions": int(hf["max_position_embeddings"]),
        "tied_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "windows": (0,) * num_layers,
    }
    return DecoderConfig(**{**fields, **switches})


def rope_of(hf: HFConfig) -> Rope:
    """Return the rotary embedding of a config, in the form of transformers 5 or the older one."""
    parameters = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in KNOWN_SCALINGS:
        raise ValueError(f"rope type {kind!r} is not supported; the known ones are {', '.join(KNOWN_SCALINGS)}")
    if float(parameters.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ValueError("partial_rotary_factor is not supported; every dimension of a head is rotated")
    theta = parameters.get("rope_theta") or hf.get("rope_theta") or 10_000.0
    original = parameters.get("original_max_position_embeddings") or hf["max_position_embeddings"]
    return Rope(
        theta=float(theta),
        scaling=kind,
        factor=float(parameters.get("factor", 1.0)),
        low_freq_factor=float(parameters.get("low_freq_factor", 1.0)),
        high_freq_factor=float(parameters.get("high_freq_factor", 4.0)),
        original_max_positions=int(original),
    )


def windows_by_type(hf: HFConfig, window: int, first_sliding_layer: int = 0) -> tuple[int, ...]:
    """Return the window of each layer: as `layer_types` says, else sliding from `first_sliding_layer` on."""
    num_layers = int(hf["num_hidden_layers"])
    kinds = hf.get("layer_types")
    if kinds is None:
        return tuple(window if layer >= first_sliding_layer else 0 for layer in range(num_layers))
    known = {"sliding_attention": window, "full_attention": 0}
    unknown = sorted(set(kinds) - set(known))
    if unknown or len(kinds) != num_layers:
        raise ValueError(f"layer_types must name {num_layers} layers, each one of {sorted(known)}; got {kinds}")
    return tuple(known[kind] for kind in kinds)
