"""Llama and Mistral: the plain pre-norm decoder; Mistral may slide its window."""

from __future__ import annotations

from pagewire.engine.model.decoder_config import DecoderConfig, HFConfig, common, windows_by_type

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
# Tensors that old checkpoints carry and the config determines.
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """Return the decoder that a Llama or Mistral config describes."""
    bias = bool(hf.get("attention_bias", False))
    window = int(hf.get("sliding_window") or 0)
    return common(
        hf,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
        windows=windows_by_type(hf, window),
    )
