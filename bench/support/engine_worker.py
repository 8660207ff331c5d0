"""An engine in a process of its own, asked line by line: batches of token ids in, seconds out, as JSON.

Runs under any Python: the standard library alone. What an engine prints goes to stderr; stdout is the conversation.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], int, int], int]
"""Prompts and the number of tokens to generate for each, greedily and whatever they are; returns tokens generated.

Prompts go by turns with the first so many adapters, 0 for the model alone.
"""


def serve(load: Callable[[str, int, list[str]], tuple[Generate, dict[str, str]]]) -> None:
    """Load the engine `argv` names, `MODEL THREADS ADAPTER...`, say its versions, and answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    generate, versions = load(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    print(json.dumps({"versions": versions}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        start_s = time.perf_counter()
        tokens = generate(asked["prompts"], asked["max_tokens"], asked["num_adapters"])
        print(json.dumps({"seconds": time.perf_counter() - start_s, "tokens": tokens}), file=answers)
