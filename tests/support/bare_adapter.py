"""A random LoRA adapter of every linear of a tiny model, written without PEFT, which machines with a GPU may lack."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def write(model: Path, target: Path, rank: int = 8) -> Path:
    """Write it to a folder; return that."""
    torch.manual_seed(rank)
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            continue
        outputs, inputs = weight.shape
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, inputs) / inputs**0.5
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(outputs, rank) / rank**0.5
    target.mkdir(parents=True)
    save_file(tensors, target / "adapter_model.safetensors")
    (target / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank // 2}))
    return target
