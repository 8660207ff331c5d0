"""What transformers' own `generate` says: the yardstick for every token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

Tokens = Sequence[int]


def generate(model: Path, prompts: Sequence[Tokens], num_tokens: int) -> list[list[int]]:
    """Return `num_tokens` greedy tokens after each prompt, in fp32, one prompt at a time; only length ends one."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded.eval()
    loaded.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            out = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens)
        answers.append(out[0, len(prompt) :].tolist())
    return answers
