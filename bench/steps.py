"""What a step of the engine costs on this CPU, natively and in plain torch, by the shape of its batch.

No processes and no queues: the model runner alone, greedy, steps repeated, the two backends taking turns. `--model`
is a Hugging Face folder. Milliseconds, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).parent / "support"))

import torch
from machine import command, machine, versions

from pagewire.core.clock import MonotonicClock
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.engine.assembly import Engine, assemble, warm_up
from pagewire.engine.config import EngineConfig
from pagewire.engine.step import Draw, Grant, Step
from pagewire.kernels.cpu_backend import CpuBackend

CONTEXT = 512
BATCHES = (1, 8, 32)
PROMPTS = (128, 512, 2048)
CHUNK = 512


def engine_of(model: str, dtype: str, threads: int, *, is_native: bool) -> Engine:
    """Load an engine with the native ops, or without."""
    config = EngineConfig(model=model, role=Role.COLOCATED, dtype=dtype, threads=threads, kv_memory_bytes=1 << 30)
    if is_native:
        engine = assemble(config, MonotonicClock())
    else:
        with mock.patch.object(CpuBackend, "load", return_value=None):
            engine = assemble(config, MonotonicClock())
    warm_up(engine)
    return engine


def step_of(engine: Engine, num_sequences: int, start: int, num_tokens: int) -> Step:
    """Grant every sequence `num_tokens` from `start` on, with blocks of its own."""
    per = engine.cache.layout.num_blocks(start + num_tokens)
    draw = Draw(sampling=SamplingParams(temperature=0.0), index=0, position=0)
    return Step(
        grants=tuple(
            Grant(
                request_id=str(number),
                tokens=tuple((number * 7 + at * 13) % 1000 + 5 for at in range(num_tokens)),
                start=start,
                block_ids=tuple(range(1 + number * per, 1 + (number + 1) * per)),
                draw=draw,
            )
            for number in range(num_sequences)
        )
    )


def milliseconds(engine: Engine, steps: Sequence[Step]) -> float:
    """Run steps one after another; return the time of all."""
    start_s = time.perf_counter()
    for step in steps:
        engine.runner.run(step, lambda _step, _group: None)
    return (time.perf_counter() - start_s) * 1e3


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hugging Face folder")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--repeats", type=int, default=7, help="of each step")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    engines = {
        name: engine_of(options.model, options.dtype, options.threads, is_native=name == "native")
        for name in ("native", "torch")
    }
    one = engines["native"]
    shapes = {f"decode, {n} x context {CONTEXT}": [step_of(one, n, CONTEXT - 1, 1)] for n in BATCHES}
    for length in PROMPTS:
        starts = range(0, length, CHUNK)
        shapes[f"prefill, {length} tokens"] = [step_of(one, 1, at, min(CHUNK, length - at)) for at in starts]
    figures: dict[str, Any] = {}
    for shape, steps in shapes.items():
        found: dict[str, list[float]] = {name: [] for name in engines}
        for repeat in range(options.repeats + 1):
            for name, engine in engines.items():
                took_ms = milliseconds(engine, steps)
                if repeat:
                    found[name].append(took_ms)
        figures[shape] = {name: statistics.median(times) for name, times in found.items()}
        print(f"{shape:28} " + ", ".join(f"{name} {took_ms:8.1f} ms" for name, took_ms in figures[shape].items()))
    if options.json:
        told = {"machine": machine(), "versions": versions("torch"), "command": command(sys.argv)}
        options.json.write_text(json.dumps({"steps-ms": figures, **told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
