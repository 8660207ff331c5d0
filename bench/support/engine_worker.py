"""An engine in a process of its own, asked line by line: batches of token ids in, seconds out, as JSON.

Runs under any Python: the standard library alone. What an engine prints goes to stderr; stdout is the conversation.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Settings:
    """What an engine is loaded with: folders of adapters, and how many tokens a step drafts of an answer at most."""

    adapters: list[str] = field(default_factory=list)
    speculative_tokens: int = 0


@dataclass
class Batch:
    """What is generated greedily: `max_tokens` for each prompt, fewer where the model ends its answer and `ends`.

    Prompts go by turns with the first `num_adapters` adapters, 0 for the model alone.
    """

    prompts: list[list[int]]
    max_tokens: int
    num_adapters: int = 0
    ends: bool = False


Generate = Callable[[Batch], int]
"""Returns how many tokens it generated."""


def serve(load: Callable[[str, int, Settings], tuple[Generate, dict[str, str]]]) -> None:
    """Load the engine `argv` names, `MODEL THREADS SETTINGS`, say its versions, and answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    generate, versions = load(sys.argv[1], int(sys.argv[2]), Settings(**json.loads(sys.argv[3])))
    print(json.dumps({"versions": versions}), file=answers)
    for line in sys.stdin:
        batch = Batch(**json.loads(line))
        start_s = time.perf_counter()
        tokens = generate(batch)
        print(json.dumps({"seconds": time.perf_counter() - start_s, "tokens": tokens}), file=answers)
