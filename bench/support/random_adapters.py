"""LoRA adapters of random numbers, of every linear of a model's layers, in the form in which PEFT stores them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pagewire.engine.adapter_folder import CONFIG_NAME, WEIGHTS_NAME
from pagewire.engine.weights import weight_files

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write(model: Path, folder: Path, rank: int, seed: int) -> Path:
    """Write an adapter of that rank to a folder; return it."""
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for path in weight_files(model):
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                module = name.removesuffix(".weight")
                if module.rpartition(".")[2] not in MODULES:
                    continue
                outputs, inputs = stored.get_slice(name).get_shape()
                for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                    values = torch.randn(shape, generator=chance) / shape[1] ** 0.5 / 4
                    tensors[f"base_model.model.{module}.lora_{part}.weight"] = values.bfloat16()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS_NAME)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(MODULES), "bias": "none"}
    (folder / CONFIG_NAME).write_text(json.dumps(config))
    return folder
