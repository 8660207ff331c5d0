"""Qwen3: no biases unless asked for, and a norm on every query and key head before it is rotated."""

from __future__ import annotations

from pagewire.engine.model import qwen2
from pagewire.engine.model.decoder_config import DecoderConfig, common
from pagewire.engine.model.hf_config import HFConfig

ARCHITECTURES = ("Qwen3ForCausalLM",)
# Unlike the others' the head size does not follow from the hidden size.
DEFAULTS: HFConfig = {**qwen2.DEFAULTS, "head_dim": 128, "attention_bias": False}
DERIVED: tuple[str, ...] = ()


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """Return the decoder that a Qwen3 config describes."""
    bias = bool(hf["attention_bias"])
    return common(hf, qkv_bias=bias, o_bias=bias, qk_norm=True, windows=qwen2.windows(hf))
