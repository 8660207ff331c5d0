"""Qwen2 and Qwen2.5: biases on q, k and v; the window slides only where the config switches it on."""

from __future__ import annotations

from pagewire.core.documents import whole
from pagewire.engine.model.decoder_config import DecoderConfig, common, windows_by_kind
from pagewire.engine.model.hf_config import HFConfig, layers_of

ARCHITECTURES = ("Qwen2ForCausalLM",)
DEFAULTS: HFConfig = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """Return the decoder that a Qwen2 config describes."""
    return common(hf, qkv_bias=True, windows=windows(hf))


def windows(hf: HFConfig) -> tuple[int, ...]:
    """Return the window of each layer: as `layer_types` says, else sliding from `max_window_layers` on.

    Raises NotNative on a kind of layer that is neither full nor sliding.
    """
    window = whole(hf, "sliding_window") if hf["use_sliding_window"] and hf["sliding_window"] else 0
    if hf["layer_types"] is not None:
        return windows_by_kind(hf, window)
    first = whole(hf, "max_window_layers", least=0)
    return tuple(window if layer >= first else 0 for layer in range(layers_of(hf)))
