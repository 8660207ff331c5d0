"""Prompts whose greedy answers are known, as far as they pass no near-tie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reference import NEAR_TIE, Reference


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and the beginning of its greedy answer that passes no near-tie."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def questions(model: Path, lengths: Sequence[int], max_tokens: int, least: int) -> list[Question]:
    """Return prompts of these lengths whose answers are known for `least` tokens or more, at most `max_tokens`."""
    return questions_of(model, [made_up(seed, length) for seed, length in enumerate(lengths)], max_tokens, least)


def made_up(seed: int, length: int) -> list[int]:
    """Return a prompt of `length` tokens; those of 256 seeds in a row begin with different ones."""
    return [(seed * 37 + i * i * 7 + i * (seed + 3)) % 256 for i in range(length)]


def questions_of(
    model: Path, prompts: Sequence[list[int]], max_tokens: int, least: int, shared: int = 0
) -> list[Question]:
    """Return those of these prompts whose answers are known so far; `shared` tokens at their beginning are the same."""
    found = []
    for prompt, expected in zip(prompts, Reference(model).greedy(prompts, max_tokens, shared), strict=True):
        known = next((at for at, margin in enumerate(expected.margins) if margin <= NEAR_TIE), max_tokens)
        if known >= least:
            found.append(Question(tuple(prompt), expected.tokens[:known]))
    assert len(found) > len(prompts) // 3, "hardly a prompt without a near-tie"
    return found
