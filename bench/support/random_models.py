"""Models of real shapes and random weights, in ordinary folders: what steps cost depends on no training.

`python random_models.py SHAPE FOLDER DEVICE` writes one, for who needs it in other processes alone.
The shapes are those of the published configs. Random numbers, never zeros, which a GPU multiplies faster.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from pagewire.engine.model import checkpoint
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.engine.model.families import architecture_of
from pagewire.engine.model.native import NativeArchitecture
from pagewire.engine.model_folder import ModelFolder

SPREAD = 0.02  # of weights; norms are 1 and this
SHARD_BYTES = 4 << 30


def _config(architecture: str, model_type: str, sizes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    layers, hidden, inner, q_heads, kv_heads, head_dim, vocab = sizes
    return {
        "architectures": [architecture], "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": inner, "num_attention_heads": q_heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "vocab_size": vocab, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3-8B": _config(
        "LlamaForCausalLM", "llama", (32, 4096, 14336, 32, 8, 128, 128256), rope_theta=500000.0,
        tie_word_embeddings=False,
    ),
    "Qwen2.5-1.5B": _config(
        "Qwen2ForCausalLM", "qwen2", (28, 1536, 8960, 12, 2, 128, 151936), rope_theta=1000000.0,
        tie_word_embeddings=True, use_sliding_window=False,
    ),
    "Qwen3-0.6B": _config(
        "Qwen3ForCausalLM", "qwen3", (28, 1024, 3072, 16, 8, 128, 151936), rope_theta=1000000.0,
        tie_word_embeddings=True, use_sliding_window=False, attention_bias=False,
    ),
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "tiny": _config(
        "Qwen3ForCausalLM", "qwen3", (2, 64, 96, 4, 2, 16, 320), rope_theta=10000.0, tie_word_embeddings=True,
        use_sliding_window=False, attention_bias=False,
    )
}  # fmt: skip


def write(folder: Path, config: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Path:
    """Write config.json and weights of seeded random numbers, drawn on the device, to a new folder; return it.

    The tokenizer is a made-up one, with a word for each token.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    _, places, _ = checkpoint.allocate(shape_of(folder), dtype, torch.device("meta"))
    generator = torch.Generator(device).manual_seed(0)
    where: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    for name, place in places.items():
        middle = 1.0 if name.endswith("norm.weight") else 0.0
        weight = torch.empty(place.shape, device=device, dtype=torch.float32)
        shard[name] = weight.normal_(middle, SPREAD, generator=generator).to(dtype).cpu()
        if sum(each.nbytes for each in shard.values()) >= SHARD_BYTES:
            where |= _save(folder, shard)
            shard = {}
    where |= _save(folder, shard)
    words = {f"w{number}": number for number in range(config["vocab_size"])}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}) + "\n")
    return folder


def _save(folder: Path, shard: dict[str, torch.Tensor]) -> dict[str, str]:
    if not shard:
        return {}
    name = f"model-{len(list(folder.glob('*.safetensors'))):05}.safetensors"
    save_file(shard, folder / name, metadata={"format": "pt"})
    return dict.fromkeys(shard, name)


def shape_of(folder: Path) -> DecoderConfig:
    """Return the sizes of a model in a folder."""
    architecture = architecture_of(ModelFolder.open(folder))
    assert isinstance(architecture, NativeArchitecture)
    return architecture.config


if __name__ == "__main__":
    shape, target, device = sys.argv[1:]
    write(Path(target), CONFIGS[shape], torch.bfloat16, torch.device(device))
