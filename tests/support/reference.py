"""transformers' own greedy answers, and the comparison that allows for nothing but a near-tie in them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GenerationConfig

NEAR_TIE = 1e-3
MAX_BATCH = 16


@dataclass(frozen=True, slots=True)
class Expected:
    """Greedy tokens, and at each the runner-up and how far behind it is."""

    tokens: tuple[int, ...]
    runners_up: tuple[int, ...]
    margins: tuple[float, ...]


class Reference:
    """The model through `transformers.generate`, in fp32 unless told otherwise."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        # Some versions of transformers leave a soft cap out unless attention is their eager one.
        is_capped = getattr(AutoConfig.from_pretrained(folder), "attn_logit_softcapping", None)
        attention = {"attn_implementation": "eager"} if is_capped else {}
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **attention).eval()
        # In place of the folder's own: greedy, and only length ends an answer.
        self._model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    def greedy(self, prompts: Sequence[list[int]], max_tokens: int, shared: int = 0) -> list[Expected]:
        """Return `max_tokens` tokens for each prompt; the end-of-sequence token does not end them.

        Prompts of like length run as one left-padded batch. The first `shared` tokens of all prompts are the same and
        computed once, for the sake of time.
        """
        if shared:
            cache = self._cache_of(prompts[0][:shared])
            return [self._generate([prompt], max_tokens, copy.deepcopy(cache))[0] for prompt in prompts]
        answers: dict[int, Expected] = {}
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
        for _, group in groupby(order, key=lambda place: len(prompts[place]).bit_length()):
            places = list(group)
            for start in range(0, len(places), MAX_BATCH):
                batch = places[start : start + MAX_BATCH]
                answers.update(zip(batch, self._generate([prompts[p] for p in batch], max_tokens), strict=True))
        return [answers[place] for place in range(len(prompts))]

    def _cache_of(self, tokens: list[int]) -> DynamicCache:
        cache = DynamicCache(config=self._model.config)
        with torch.inference_mode():
            self._model(torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    def _generate(
        self, prompts: Sequence[list[int]], max_tokens: int, cache: DynamicCache | None = None
    ) -> list[Expected]:
        longest = max(len(prompt) for prompt in prompts)
        tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = self._model.generate(
                tokens,
                attention_mask=mask,
                past_key_values=cache,
                max_new_tokens=max_tokens,
                return_dict_in_generate=True,
                output_logits=True,
            )
        best = [logits.topk(2, dim=-1) for logits in out.logits]
        return [
            Expected(
                tokens=tuple(out.sequences[row, longest:].tolist()),
                runners_up=tuple(int(top.indices[row, 1]) for top in best),
                margins=tuple(float(top.values[row, 0] - top.values[row, 1]) for top in best),
            )
            for row in range(len(prompts))
        ]


def generate(folder: Path, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Return `max_tokens` greedy tokens after each prompt, one prompt at a time."""
    model = Reference(folder)
    return [list(model.greedy([list(prompt)], max_tokens)[0].tokens) for prompt in prompts]


def fed_token_by_token(folder: Path, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Return `max_tokens` greedy tokens after a prompt that the model is given one token at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cache, tokens, answer = DynamicCache(config=model.config), list(prompt), list[int]()
    with torch.inference_mode():
        for place in range(len(prompt) + max_tokens - 1):
            logits = model(torch.tensor([[tokens[place]]]), past_key_values=cache, use_cache=True).logits
            if place >= len(prompt) - 1:
                answer.append(int(logits[0, -1].argmax()))
                tokens.append(answer[-1])
    return answer


def is_near_tie(expected: Expected, got: tuple[int, ...], near: float = NEAR_TIE) -> bool:
    """Return False where `got` is equal, True where it leaves the path at a near-tie; fail on any other difference."""
    if got == expected.tokens:
        return False
    assert len(got) == len(expected.tokens)
    place = next(i for i, (a, b) in enumerate(zip(got, expected.tokens, strict=True)) if a != b)
    margin = expected.margins[place]
    assert margin < near, f"token {place} is {got[place]}, not {expected.tokens[place]}, by a margin of {margin}"
    assert got[place] == expected.runners_up[place]
    return True
