"""Where each tensor of a Hugging Face checkpoint goes in the decoder's fused weights.

All families here use the same names. Knows shapes and names; reads no file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagewire.engine.model.decoder import DecoderWeights
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.engine.model.shard import Shard
from pagewire.engine.weights import Part
from pagewire.kernels.decoder_stack import LayerWeights
from pagewire.kernels.scaled_weight import ScaledWeight, Stored

Destinations = dict[str, Stored]
Parts = dict[str, Part]
_Fused = Callable[..., torch.Tensor]
_Product = Callable[[tuple[int, ...], dict[str, int], int], Stored]


def allocate(
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard | None = None,
    *,
    quantised: bool = False,
) -> tuple[DecoderWeights, Destinations, Parts]:
    """Return uninitialised weights, the view of them that each named tensor fills, and which part of it that is.

    `config` is that of one rank. Queries, keys, values, gate and up are divided by rows; what is summed over the ranks,
    o and down, by columns, and its bias is the first rank's, as is the head. Norms and embedding are everybody's.
    `quantised`, the matrices of layers are codes with a scale a row, and nothing else is.
    """
    places: Destinations = {}
    divided: Parts = {}
    shard = shard or Shard()

    def fused(shape: tuple[int, ...], parts: dict[str, int], axis: int | None = None) -> torch.Tensor:
        whole = torch.empty(shape, dtype=dtype, device=device)
        named(whole, parts, axis)
        return whole

    def product(shape: tuple[int, ...], parts: dict[str, int], axis: int) -> Stored:
        if not quantised:
            return fused(shape, parts, axis)
        whole = ScaledWeight.empty(shape, dtype, device)
        named(whole, parts, axis)
        return whole

    def named(whole: Stored, parts: dict[str, int], axis: int | None) -> None:
        places.update(zip(parts, whole.split(list(parts.values())), strict=True))
        if axis is not None and shard.num_ranks > 1:
            for name in parts:
                size = places[name].shape[axis] * shard.num_ranks
                divided[name] = Part(axis=axis, places=shard.part(size), whole=size)

    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = fused((vocab, hidden), {"model.embed_tokens.weight": vocab})
    layers = tuple(_layer(config, f"model.layers.{i}", fused, product, shard) for i in range(config.num_layers))
    norm = fused((hidden,), {"model.norm.weight": hidden})
    head = None
    if shard.is_first:
        head = embedding if config.tied_embeddings else fused((vocab, hidden), {"lm_head.weight": vocab})
    return DecoderWeights(embedding=embedding, layers=layers, norm=norm, head=head), places, divided


def _layer(config: DecoderConfig, prefix: str, fused: _Fused, product: _Product, shard: Shard) -> LayerWeights:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.num_q_heads * head_dim, config.num_kv_heads * head_dim

    def matrix(folder: str, parts: dict[str, int], columns: int, axis: int = 0) -> Stored:
        named = {f"{prefix}.{folder}.{part}.weight": rows for part, rows in parts.items()}
        return product((sum(parts.values()), columns), named, axis)

    def bias(folder: str, parts: dict[str, int], axis: int | None = 0, *, wanted: bool) -> torch.Tensor | None:
        named = {f"{prefix}.{folder}.{part}.bias": rows for part, rows in parts.items()}
        return fused((sum(parts.values()),), named, axis) if wanted else None

    def norm(name: str, size: int) -> torch.Tensor:
        return fused((size,), {f"{prefix}.{name}.weight": size})

    qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    gate_up = {"gate_proj": inner, "up_proj": inner}
    return LayerWeights(
        input_norm=norm("input_layernorm", hidden),
        qkv=matrix("self_attn", qkv, hidden),
        qkv_bias=bias("self_attn", qkv, wanted=config.qkv_bias),
        q_norm=norm("self_attn.q_norm", head_dim) if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm", head_dim) if config.qk_norm else None,
        o=matrix("self_attn", {"o_proj": hidden}, q_rows, 1),
        o_bias=bias("self_attn", {"o_proj": hidden}, None, wanted=config.o_bias and shard.is_first),
        post_norm=norm("post_attention_layernorm", hidden),
        gate_up=matrix("mlp", gate_up, hidden),
        gate_up_bias=bias("mlp", gate_up, wanted=config.mlp_bias),
        down=matrix("mlp", {"down_proj": hidden}, inner, 1),
        down_bias=bias("mlp", {"down_proj": hidden}, None, wanted=config.mlp_bias and shard.is_first),
    )
