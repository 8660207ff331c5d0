"""The shape of a pre-norm decoder, whatever family it comes from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pagewire.core.attention_heads import AttentionHeads
from pagewire.core.documents import real, whole
from pagewire.core.kv_layout import HEAD_MULTIPLE, BlockOrder, KVLayout, stored_head_dim
from pagewire.engine.model.hf_config import HFConfig, NotNative, layers_of
from pagewire.engine.model.rope_config import reach, rope_of
from pagewire.kernels.decoder_stack import StackShape
from pagewire.kernels.rope import Rope


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
            head_dim=self.stored_head_dim,
            block_size=block_size,
            dtype=dtype,
            order=order,
        )

    def part(self, num_ranks: int) -> DecoderConfig:
        """Return what one of `num_ranks` ranks computes of it; raises ValueError naming what they cannot share."""
        divided = ("num_q_heads", "num_kv_heads", "intermediate_size")
        for name in divided:
            if getattr(self, name) % num_ranks:
                raise ValueError(f"tensor_parallel {num_ranks}: {name} {getattr(self, name)} is no multiple of it")
        return dataclasses.replace(self, **{name: getattr(self, name) // num_ranks for name in divided})

    @property
    def stored_head_dim(self) -> int:
        """How wide heads are in the pool, and in the layers that attend over it."""
        return stored_head_dim(self.head_dim)

    @property
    def layer_weights(self) -> int:
        """Elements of the weights that each token is multiplied with in all layers: half the FLOP of its products."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_q_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    def stack_shape(self) -> StackShape:
        """Return what its layers have in common."""
        return StackShape(
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.stored_head_dim,
            norm_eps=self.norm_eps,
            scale=self.head_dim**-0.5,
            windows=self.windows,
        )


def common(hf: HFConfig, **switches: Any) -> DecoderConfig:
    """Return the decoder that the fields of all families describe; raises NotNative for what it does not compute.

    Raises ValueError naming a field that is not what it is anywhere.
    """
    activation = hf.get("hidden_act", "silu")
    if activation != "silu":
        raise NotNative(f"hidden_act {activation!r} is not supported; the known one is silu")
    heads, num_layers = AttentionHeads.of(hf), layers_of(hf)
    if heads.head_dim % 2:
        raise ValueError(f"head_dim {heads.head_dim} is odd: rope turns pairs")
    if heads.num_q_heads % heads.num_kv_heads:
        raise ValueError(
            f"num_attention_heads {heads.num_q_heads} is no multiple of num_key_value_heads {heads.num_kv_heads}: each "
            "of these serves as many of those"
        )
    norm_eps = real({"rms_norm_eps": 1e-6, **hf}, "rms_norm_eps")
    if norm_eps < 0:
        raise ValueError(f"rms_norm_eps must not be negative, is {norm_eps}")
    fields: dict[str, Any] = {
        "vocab_size": whole(hf, "vocab_size"),
        "hidden_size": whole(hf, "hidden_size"),
        "intermediate_size": whole(hf, "intermediate_size"),
        "num_layers": num_layers,
        "num_q_heads": heads.num_q_heads,
        "num_kv_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "norm_eps": norm_eps,
        "rope": rope_of(hf),
        "max_positions": reach(hf),
        "tied_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "windows": (0,) * num_layers,
    }
    config = DecoderConfig(**{**fields, **switches})
    if config.qk_norm and config.head_dim != config.stored_head_dim:
        raise NotNative(f"head_dim {config.head_dim} is no multiple of {HEAD_MULTIPLE}, and its heads are normed")
    return config


def windows_by_kind(hf: HFConfig, window: int) -> tuple[int, ...]:
    """Return the window of each layer: `window` of those that `layer_types` calls sliding, 0 of those it calls full.

    Raises NotNative on a kind of layer that is neither.
    """
    num_layers, kinds, known = layers_of(hf), hf["layer_types"], {"sliding_attention": window, "full_attention": 0}
    if not isinstance(kinds, list) or len(kinds) != num_layers or not all(kind in known for kind in map(str, kinds)):
        raise NotNative(f"layer_types must name {num_layers} layers, each one of {sorted(known)}; got {kinds!r:.200}")
    return tuple(known[kind] for kind in kinds)
