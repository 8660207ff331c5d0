"""Paged memory, scheduler, model and stepping: what both kinds of pod share, and `LLM`, which needs no pod.

Importing it costs nothing: `LLM` brings torch when it is first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagewire.core.sampling import Grammar, GrammarKind, SamplingParams, TokenBias, TokenSequence
    from pagewire.engine.in_place import Completion
    from pagewire.engine.llm import LLM

__all__ = ["LLM", "Completion", "Grammar", "GrammarKind", "SamplingParams", "TokenBias", "TokenSequence"]

_HOMES = {
    "LLM": "pagewire.engine.llm",
    "Completion": "pagewire.engine.in_place",
    **dict.fromkeys(
        ("Grammar", "GrammarKind", "SamplingParams", "TokenBias", "TokenSequence"), "pagewire.core.sampling"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
