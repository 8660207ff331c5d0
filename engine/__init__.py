"""Paged memory, scheduler, model and stepping: what both kinds of pod share, and `LLM`, which needs no pod.

Importing it costs nothing: `LLM` brings torch when it is first named.
"""

from __future__ import annotations

import importlib
import os
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


# How often a thread of OpenMP's looks for the others before it sleeps: some 50 us, more than they are apart where cores
# are free. By default it looks for milliseconds, and while one thread's core is somebody else's, the others keep theirs
# from whoever could be moved there. OpenMP reads it once, when torch brings it in.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
