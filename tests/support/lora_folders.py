"""Random LoRA adapters in folders as PEFT writes them, and what PEFT itself answers with one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig

# Each another way to say how much is added where.
KINDS: dict[str, dict[str, Any]] = {
    "all": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
    "attention": {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "patterns": {
        "r": 4, "lora_alpha": 8, "target_modules": ["k_proj", "o_proj", "up_proj", "down_proj"],
        "rank_pattern": {"up_proj": 20}, "alpha_pattern": {"layers.1.self_attn.o_proj": 3, "up_proj": 40},
        "layers_to_transform": [0, 1],
    },
}  # fmt: skip


@contextmanager
def _older_words() -> Iterator[None]:
    """PEFT asks transformers by names that are on their way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def build(model: Path, target: Path, kind: str, seed: int = 0) -> Path:
    """Write an adapter of one of the `KINDS`, or of whatever else `LoraConfig` takes, to a folder; return it."""
    torch.manual_seed(seed)
    with _older_words():
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        adapted = get_peft_model(base, LoraConfig(**KINDS[kind]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # zeros, until it is trained
            torch.nn.init.normal_(parameter, std=0.2)
    adapted.save_pretrained(str(target))
    return target


def beside(model: Path, kind: str) -> Path:
    """Return the folder of an adapter beside its model's, built at its first use."""
    folder = model.with_name(f"{model.name}-{kind}")
    return folder if folder.exists() else build(model, folder, kind)


def answers(
    model: Path, adapter: Path | None, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[tuple[int, ...]]:
    """Return `max_tokens` greedy tokens after each prompt, in fp32, one prompt at a time."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with _older_words():
        adapted = base if adapter is None else PeftModel.from_pretrained(base, str(adapter)).eval()
    adapted.generation_config = base.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    found = []
    for prompt in prompts:
        given = torch.tensor([list(prompt)])
        with torch.inference_mode():
            whole = adapted.generate(
                input_ids=given, attention_mask=torch.ones_like(given), max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
            )  # fmt: skip
        found.append(tuple(whole[0, len(prompt) :].tolist()))
    return found


def merged(model: Path, adapter: Path, target: Path) -> Path:
    """Write the model with the adapter as part of its weights to a folder, as PEFT merges it; return it."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with _older_words():
        PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (model / name).is_file():
            (target / name).write_bytes((model / name).read_bytes())
    return target
