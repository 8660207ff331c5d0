"""Llama: the plain pre-norm decoder; biases where the config asks for them."""

from __future__ import annotations

from pagewire.core.documents import whole
from pagewire.engine.model.decoder_config import DecoderConfig, common
from pagewire.engine.model.hf_config import HFConfig, NotNative

ARCHITECTURES = ("LlamaForCausalLM",)
# What transformers takes an absent entry for.
DEFAULTS: HFConfig = {"max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False}
# Tensors that old checkpoints carry and the config determines.
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """Return the decoder that a Llama config describes."""
    if hf.get("sliding_window") and whole(hf, "sliding_window") < whole(hf, "max_position_embeddings"):
        raise NotNative(f"sliding_window {hf['sliding_window']} is not supported; a Llama's layers have none")
    bias = bool(hf["attention_bias"])
    return common(hf, qkv_bias=bias, o_bias=bias, mlp_bias=bool(hf["mlp_bias"]))
