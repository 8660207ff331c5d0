"""Mistral: a Llama without biases, whose window slides in every layer unless the config says null, or which do."""

from __future__ import annotations

from pagewire.core.documents import whole
from pagewire.engine.model.decoder_config import DecoderConfig, common, windows_by_kind
from pagewire.engine.model.hf_config import HFConfig, layers_of

ARCHITECTURES = ("MistralForCausalLM",)
DEFAULTS: HFConfig = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096}
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """Return the decoder that a Mistral config describes."""
    window = whole(hf, "sliding_window") if hf["sliding_window"] else 0
    # With kinds of layers it is what transformers calls Ministral, whatever the config calls it.
    windows = (window,) * layers_of(hf) if hf.get("layer_types") is None else windows_by_kind(hf, window)
    return common(hf, windows=windows)
