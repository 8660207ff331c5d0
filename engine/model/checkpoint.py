"""Where each tensor of a Hugging Face checkpoint goes in the decoder's fused weights.

All families here use the same names. Knows shapes and names; reads no file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagewire.engine.model.decoder import DecoderWeights
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.kernels.decoder_stack import LayerWeights

Destinations = dict[str, torch.Tensor]
_Fused = Callable[[tuple[int, ...], dict[str, int]], torch.Tensor]


def allocate(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> tuple[DecoderWeights, Destinations]:
    """Return uninitialised weights, and the view of them that each named tensor fills."""
    places: Destinations = {}

    def fused(shape: tuple[int, ...], parts: dict[str, int]) -> torch.Tensor:
        whole = torch.empty(shape, dtype=dtype, device=device)
        places.update(zip(parts, torch.split(whole, list(parts.values())), strict=True))
        return whole

    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = fused((vocab, hidden), {"model.embed_tokens.weight": vocab})
    layers = tuple(_layer(config, f"model.layers.{i}", fused) for i in range(config.num_layers))
    norm = fused((hidden,), {"model.norm.weight": hidden})
    head = embedding if config.tied_embeddings else fused((vocab, hidden), {"lm_head.weight": vocab})
    return DecoderWeights(embedding=embedding, layers=layers, norm=norm, head=head), places


def _layer(config: DecoderConfig, prefix: str, fused: _Fused) -> LayerWeights:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.num_q_heads * head_dim, config.num_kv_heads * head_dim

    def matrix(folder: str, parts: dict[str, int], columns: int) -> torch.Tensor:
        named = {f"{prefix}.{folder}.{part}.weight": rows for part, rows in parts.items()}
        return fused((sum(parts.values()), columns), named)

    def bias(folder: str, parts: dict[str, int], *, wanted: bool) -> torch.Tensor | None:
        named = {f"{prefix}.{folder}.{part}.bias": rows for part, rows in parts.items()}
        return fused((sum(parts.values()),), named) if wanted else None

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
        o=matrix("self_attn", {"o_proj": hidden}, q_rows),
        o_bias=bias("self_attn", {"o_proj": hidden}, wanted=config.o_bias),
        post_norm=norm("post_attention_layernorm", hidden),
        gate_up=matrix("mlp", gate_up, hidden),
        gate_up_bias=bias("mlp", gate_up, wanted=config.mlp_bias),
        down=matrix("mlp", {"down_proj": hidden}, inner),
        down_bias=bias("mlp", {"down_proj": hidden}, wanted=config.mlp_bias),
    )
