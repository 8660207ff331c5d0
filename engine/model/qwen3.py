"""Qwen3: no biases unless asked for, and a norm on every query and key head before it is rotated."""

from __future__ import annotations

from pagewire.engine.model import qwen2
from pagewire.engine.model.decoder_config import DecoderConfig, HFConfig, common

ARCHITECTURES = ("Qwen3ForCausalLM",)
DERIVED: tuple[str, ...] = ()


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """Return the decoder that a Qwen3 config describes."""
    bias = bool(hf.get("attention_bias", False))
    # Unlike the others, the head size does not follow from the hidden size.
    head_dim = int(hf.get("head_dim") or 128)
    return common(hf, qkv_bias=bias, o_bias=bias, qk_norm=True, head_dim=head_dim, windows=qwen2.windows(hf))
