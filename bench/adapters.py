"""What LoRA adapters cost a step: of as many sequences, with none, with one for all, with several, with one each.

Random adapters of every linear. The model runner alone, greedy, no processes and no queues; batches take turns, and the
same engine computes all but "not loaded", whose engine has no adapters. `--model` is a Hugging Face folder.
Milliseconds, medians and quartiles.

With `--peer transformers` (PEFT) or `--peer vllm=PYTHON`, before that, output tokens a second of 32 requests with 128
tokens of prompt and 64 of answer: engines in processes of their own take turns, as in `bench/engine.py`, with prompts
that are new each time.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

import torch
from engine_process import EngineProcess, peer_named
from origin import parser_of, write_figures
from random_adapters import write
from repeats import by_turns, quartiles, told
from timed_steps import engine_of, step_of, timed

from pagewire.core.messages import Role
from pagewire.engine.adapter_folder import AdapterFolder
from pagewire.engine.assembly import Engine
from pagewire.engine.config import EngineConfig
from pagewire.engine.step import Step

CONTEXT = 512
REQUESTS, PROMPT, OUTPUT = 32, 128, 64
VOCABULARY = 40_000  # ids below are words in all models that one would take here
NUM_ADAPTERS = (0, 1, 8)  # that requests go by turns with
STEPS = {  # sequences, where they begin, tokens of each
    f"decode, 1 x context {CONTEXT}": (1, CONTEXT - 1, 1),
    f"decode, 8 x context {CONTEXT}": (8, CONTEXT - 1, 1),
    f"decode, 32 x context {CONTEXT}": (32, CONTEXT - 1, 1),
    "prompt, 512 tokens": (1, 0, 512),
}


def adapted(step: Step, num_adapters: int) -> Step:
    """Return a step whose sequences go by turns with as many adapters, sorted as they come."""
    if not num_adapters:
        return step
    grants = (dataclasses.replace(grant, adapter=number % num_adapters + 1) for number, grant in enumerate(step.grants))
    return Step(grants=tuple(grants))


def throughput(options: argparse.Namespace, folders: list[Path]) -> dict[str, dict[str, list[float]]]:
    """Measure the engines by turns, print, return tokens per second by the number of adapters and the engine."""
    found: dict[str, dict[str, list[float]]] = {}

    def rate(engine: EngineProcess, count: int, turn: int) -> float:
        draw = random.Random(f"{count}/{turn}")  # the same for all engines
        prompts = [[draw.randrange(5, VOCABULARY) for _ in range(PROMPT)] for _ in range(REQUESTS)]
        with engine.alone():
            return REQUESTS * OUTPUT / engine.generate(prompts, OUTPUT, count)

    with ExitStack() as stack:
        engines = [
            stack.enter_context(EngineProcess(name, python, options.model, options.threads, folders))
            for name, python in [("pagewire", sys.executable), *options.peer]
        ]
        for count in NUM_ADAPTERS:
            rates = by_turns({each.name: partial(rate, each, count) for each in engines}, options.turns)
            print(f"{REQUESTS} x ({PROMPT} in, {OUTPUT} out), {count} adapters: {told(rates)} tokens/s", flush=True)
            found[f"{count} adapters"] = rates
    return found


def measure(options: argparse.Namespace, folders: list[Path]) -> dict[str, Any]:
    """Measure steps, print, return the figures."""
    named = [f"a{number}={folder}" for number, folder in enumerate(folders)]

    def loaded(adapters: list[str]) -> Engine:
        config = EngineConfig(
            model=options.model, role=Role.COLOCATED, dtype=options.dtype, threads=options.threads,
            kv_memory_bytes=1 << 30, adapters=tuple(adapters),
        )  # fmt: skip
        return engine_of(config)

    bare, engine = loaded([]), loaded(named)
    size = sum(AdapterFolder.open(each).weights.stat().st_size for each in named[:1])
    print(f"an adapter of rank {options.rank} is {size / 1e6:.1f} MB as it is stored", flush=True)
    found: dict[str, Any] = {}
    for kind, (count, start, length) in STEPS.items():
        plain = step_of(bare, count, start, length)
        ways = {"not loaded": timed(bare, plain), "none": timed(engine, plain)}
        ways |= {f"{each} adapters": timed(engine, adapted(plain, each)) for each in sorted({1, min(8, count), count})}
        times_ms = by_turns(ways, options.repeats)
        print(f"{kind}: {told(times_ms, '.1f')} ms", flush=True)
        found[kind] = {way: quartiles(each) for way, each in times_ms.items()}
    return found


def main() -> None:
    """Parse, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--dtype", default="auto", help="that is computed in")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--threads", type=int, default=2, help="of the engines")
    parser.add_argument("--repeats", type=int, default=15, help="of each step")
    parser.add_argument("--peer", type=peer_named, action="append", default=[], help="transformers, or vllm=PYTHON")
    parser.add_argument("--turns", type=int, default=3, help="of each engine beside peers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as home:
        most = max(count for count, _, _ in STEPS.values())
        folders = [write(Path(options.model), Path(home) / str(each), options.rank, each) for each in range(most)]
        rates = throughput(options, folders[: max(NUM_ADAPTERS)]) if options.peer else {}
        figures = measure(options, folders)
    write_figures(options.json, {"quartiles-ms": figures, "tokens-per-s": rates}, "torch", "transformers", "peft")


if __name__ == "__main__":
    main()
