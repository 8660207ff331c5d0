"""Qwen2 and Qwen2.5: biases on q, k and v; the window slides only where the config switches it on."""

from __future__ import annotations

from pagewire.engine.model.decoder_config import DecoderConfig, HFConfig, common, windows_by_type

ARCHITECTURES = ("Qwen2ForCausalLM",)
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """Return the decoder that a Qwen2 config describes."""
    return common(hf, qkv_bias=True, windows=windows(hf))


def windows(hf: HFConfig) -> tuple[int, ...]:
    """Return the window of each layer by the rule of the Qwen configs."""
    slides = bool(hf.get("use_sliding_window", False))
    window = int(hf.get("sliding_window") or 0) if slides else 0
    return windows_by_type(hf, window, int(hf.get("max_window_layers", 28)))
