"""Seeded random models of each architecture, small enough for seconds, in ordinary Hugging Face folders.

With a byte-level tokenizer (a token per byte, and three special ones) and a chat template. They show that the mechanism
is exact, not that answers make sense.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AfmoeConfig,
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GenerationConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    OlmoConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
END_OF_TEXT, IM_START, IM_END = 256, 257, 258

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "bos_token_id": IM_START,
    "eos_token_id": IM_END,
    "pad_token_id": END_OF_TEXT,
}


def _scaled(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, **parameters}}


# What the native decoder computes. Original positions are few, so that prompts of the tests go beyond them.
NATIVE: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_SHAPE),
    "llama_four_heads": lambda: LlamaConfig(**{**_SHAPE, "num_key_value_heads": 4}),
    "llama_wide_heads": lambda: LlamaConfig(**{**_SHAPE, "head_dim": 32, "num_key_value_heads": 1}),
    "llama_odd_heads": lambda: LlamaConfig(**{**_SHAPE, "head_dim": 20, "attention_bias": True}),
    "llama3_rope": lambda: LlamaConfig(
        **{**_SHAPE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        **_scaled("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "linear_rope": lambda: LlamaConfig(**_SHAPE, **_scaled("linear", factor=2.0)),
    "yarn_rope": lambda: Qwen2Config(**_SHAPE, **_scaled("yarn", factor=8.0, original_max_position_embeddings=64)),
    # No prompt of the tests is longer, and the longest grows beyond: what transformers does then has one meaning.
    "dynamic_rope": lambda: LlamaConfig(**{**_SHAPE, "max_position_embeddings": 100}, **_scaled("dynamic", factor=4.0)),
    "mistral": lambda: MistralConfig(**_SHAPE, sliding_window=24),
    # Ministral, once transformers reads it from a folder.
    "mistral_layer_types": lambda: MistralConfig(
        **_SHAPE, sliding_window=20, layer_types=["full_attention", "sliding_attention", "full_attention"]
    ),
    "qwen2": lambda: Qwen2Config(**_SHAPE),
    "qwen2_sliding": lambda: Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**{**_SHAPE, "tie_word_embeddings": False}),
    "qwen3_whole_groups": lambda: Qwen3Config(**{**_SHAPE, "tie_word_embeddings": False, "intermediate_size": 128}),
    "qwen3_layer_types": lambda: Qwen3Config(
        **{**_SHAPE, "head_dim": 32, "attention_bias": True},
        use_sliding_window=True,
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}

# For configs that derive the head size, or that know no grouped heads.
_DERIVED = {key: value for key, value in _SHAPE.items() if key != "head_dim"}
_PLAIN = {key: value for key, value in _DERIVED.items() if key != "num_key_value_heads"}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

# What the general path computes.
GENERAL: dict[str, Callable[[], PretrainedConfig]] = {
    "gemma": lambda: GemmaConfig(**_SHAPE),
    "gemma2": lambda: Gemma2Config(**_SHAPE, sliding_window=20, attn_logit_softcapping=2.0),
    "gemma3": lambda: Gemma3TextConfig(**_SHAPE, sliding_window=20, sliding_window_pattern=2),
    "phi": lambda: PhiConfig(**{**_DERIVED, "tie_word_embeddings": False}),
    "phi3": lambda: Phi3Config(**_DERIVED, sliding_window=24),
    "phi3_longrope": lambda: Phi3Config(
        **{**_DERIVED, "original_max_position_embeddings": 128},
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.25 * i for i in range(8)],
            "long_factor": [4.0] * 8,
        },
    ),
    "olmo": lambda: OlmoConfig(**_DERIVED, clip_qkv=3.0),
    "olmo_dynamic": lambda: OlmoConfig(**_DERIVED, **_scaled("dynamic", factor=4.0)),
    "olmo2": lambda: Olmo2Config(**_DERIVED),
    "olmo2_yarn": lambda: Olmo2Config(**_DERIVED, **_scaled("yarn", factor=8.0, original_max_position_embeddings=64)),
    "gpt_neox": lambda: GPTNeoXConfig(**{**_PLAIN, "tie_word_embeddings": False}),
    "gpt2": lambda: GPT2Config(vocab_size=VOCAB_SIZE, n_embd=64, n_layer=3, n_head=4, n_positions=512),
    "opt": lambda: OPTConfig(**{**_PLAIN, "word_embed_proj_dim": 64, "ffn_dim": 96}),
    "gpt_oss": lambda: GptOssConfig(
        **{**_SHAPE, "tie_word_embeddings": False}, num_local_experts=4, num_experts_per_tok=2, sliding_window=20
    ),
    # Views attention's result as rows, whatever is behind its odd heads.
    "afmoe": lambda: AfmoeConfig(
        **{**_SHAPE, **_EXPERTS, "head_dim": 24}, num_experts=4, num_dense_layers=1, sliding_window=20
    ),
    "mixtral": lambda: MixtralConfig(**_SHAPE, num_local_experts=4),
    "llama_gelu": lambda: LlamaConfig(**_SHAPE, hidden_act="gelu"),
    "deepseek_v3": lambda: DeepseekV3Config(
        **{**_PLAIN, "tie_word_embeddings": False},
        **_EXPERTS,
        num_key_value_heads=4,
        n_routed_experts=4,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
    ),
}

# For sequences that outgrow a pool: a window, and many positions at little cost.
_NARROW = {**_SHAPE, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
LONG: dict[str, Callable[[], PretrainedConfig]] = {
    "mistral_64": lambda: MistralConfig(**{**_SHAPE, "max_position_embeddings": 1024}, sliding_window=64),
    "llama_long": lambda: LlamaConfig(**{**_NARROW, "max_position_embeddings": 16384}),
}

ARCHITECTURES = {**NATIVE, **GENERAL, **LONG}


def build(folder: Path, name: str = "llama", seed: int = 0, num_layers: int = 3) -> Path:
    """Write the model `name` to `folder` and return it; equal seeds give equal weights."""
    config = ARCHITECTURES[name]()
    config.num_hidden_layers = num_layers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                # Wide enough that the two best logits are rarely close, and that attention is not uniform.
                is_norm = key.endswith("norm.weight")
                parameter.normal_(1.0 if is_norm else 0.0, 0.2)
    model.generation_config = GenerationConfig(
        bos_token_id=IM_START, eos_token_id=[IM_END, END_OF_TEXT], pad_token_id=END_OF_TEXT
    )
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json of the byte-level tokenizer."""
    # Token `b` is byte `b`: the ids follow the bytes, through the printable stand-ins that byte-level models use.
    vocab = {character: byte for byte, character in _byte_characters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _byte_characters() -> dict[int, str]:
    # GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on.
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in table]
    table.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return table
