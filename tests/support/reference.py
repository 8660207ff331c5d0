"""transformers' own greedy answer, and the comparison that allows for nothing but a near-tie in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

NEAR_TIE = 1e-3


@dataclass(frozen=True, slots=True)
class Expected:
    """Greedy tokens, and at each the runner-up and how far behind it is."""

    tokens: tuple[int, ...]
    runners_up: tuple[int, ...]
    margins: tuple[float, ...]


class Reference:
    """The model in fp32 through `transformers.generate`, one prompt at a time."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def greedy(self, prompt: list[int], max_tokens: int) -> Expected:
        """Return `max_tokens` tokens; the end-of-sequence token does not end them."""
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            out = self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
        best = [logits[0].topk(2) for logits in out.logits]
        return Expected(
            tokens=tuple(out.sequences[0, len(prompt) :].tolist()),
            runners_up=tuple(int(top.indices[1]) for top in best),
            margins=tuple(float(top.values[0] - top.values[1]) for top in best),
        )


def is_near_tie(expected: Expected, got: tuple[int, ...]) -> bool:
    """Return False where `got` is equal, True where it leaves the path at a near-tie; fail on any other difference."""
    if got == expected.tokens:
        return False
    assert len(got) == len(expected.tokens)
    place = next(i for i, (a, b) in enumerate(zip(got, expected.tokens, strict=True)) if a != b)
    margin = expected.margins[place]
    assert margin < NEAR_TIE, f"token {place} is {got[place]}, not {expected.tokens[place]}, by a margin of {margin}"
    assert got[place] == expected.runners_up[place]
    return True
