"""What a step of the engine costs on this CPU, natively and in plain torch, beside what this machine allows.

No processes and no queues: the model runner alone, greedy, steps repeated, backends and limits taking turns. A decode's
limit is reading all weights and all KV once at the best rate seen, and beside that at the median rate right before its
own steps, for hosts that read at one rate now and at another then; a prompt's is the model's bare linears and causal
attention in torch, one call each. `--model` is a Hugging Face folder. Milliseconds, medians.
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
from torch.nn import functional

from pagewire.core import pages
from pagewire.core.clock import MonotonicClock
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.engine.assembly import Engine, assemble, warm_up
from pagewire.engine.config import EngineConfig
from pagewire.engine.model.decoder_config import common
from pagewire.engine.step import Draw, Grant, Step
from pagewire.kernels.cpu_backend import CpuBackend

CONTEXT = 512
BATCHES = (1, 8, 32)
PROMPTS = (128, 512, 2048)
CHUNK = 512
MEMORY_BYTES = 1 << 30  # more than any cache holds


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


class Limits:
    """What the same work costs at least: matrices as the model has them, random, and a stretch of memory."""

    def __init__(self, engine: Engine, hf_config: dict[str, Any]) -> None:
        config = common(hf_config)
        self._config = config
        q_size, kv_size = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
        shapes = [
            (q_size + 2 * kv_size, config.hidden_size), (config.hidden_size, q_size),
            (2 * config.intermediate_size, config.hidden_size), (config.hidden_size, config.intermediate_size),
        ]  # fmt: skip
        self._dtype = engine.cache.pool.dtype
        self._weights = [torch.randn(shape).to(self._dtype) for _ in range(config.num_layers) for shape in shapes]
        head = config.vocab_size * config.hidden_size * self._dtype.itemsize
        self._weight_bytes = head + sum(weight.nbytes for weight in self._weights)
        self._token_bytes = engine.cache.layout.token_bytes
        self._memory = torch.frombuffer(pages.map_anonymous(MEMORY_BYTES), dtype=torch.int64)
        self._memory.fill_(1)

    def decode_bytes(self, num_sequences: int) -> int:
        """Bytes that a decode reads: weights once, and the KV of all sequences."""
        return self._weight_bytes + num_sequences * CONTEXT * self._token_bytes

    def read_rate(self) -> float:
        """Bytes per second of one pass over memory in huge pages."""
        start_s = time.perf_counter()
        self._memory.sum()
        return self._memory.nbytes / (time.perf_counter() - start_s)

    def prefill_ms(self, num_tokens: int) -> float:
        """Milliseconds of all layers' bare linears and causal attention."""
        config = self._config
        inputs = {weight.shape[1]: torch.randn(num_tokens, weight.shape[1]).to(self._dtype) for weight in self._weights}
        q = torch.randn(1, config.num_q_heads, num_tokens, config.head_dim).to(self._dtype)  # KV heads repeated
        start_s = time.perf_counter()
        for weight in self._weights:
            functional.linear(inputs[weight.shape[1]], weight)
        for _ in range(config.num_layers):
            functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return (time.perf_counter() - start_s) * 1e3


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
    decodes = {f"decode, {n} x context {CONTEXT}": n for n in BATCHES}
    prompts = {f"prefill, {length} tokens": length for length in PROMPTS}
    shapes = {shape: [step_of(one, n, CONTEXT - 1, 1)] for shape, n in decodes.items()}
    for shape, length in prompts.items():
        shapes[shape] = [step_of(one, 1, at, min(CHUNK, length - at)) for at in range(0, length, CHUNK)]
    limits = Limits(one, json.loads((Path(options.model) / "config.json").read_text()))
    rates: dict[str, list[float]] = {shape: [] for shape in shapes}
    figures: dict[str, dict[str, float]] = {}
    for shape, steps in shapes.items():
        found: dict[str, list[float]] = {name: [] for name in engines}
        bare: list[float] = []
        for repeat in range(options.repeats + 1):
            rates[shape].append(limits.read_rate())
            if shape in prompts:
                bare.append(limits.prefill_ms(prompts[shape]))
            for name, engine in engines.items():
                took_ms = milliseconds(engine, steps)
                if repeat:
                    found[name].append(took_ms)
        figures[shape] = {name: statistics.median(times) for name, times in found.items()}
        if bare:
            figures[shape]["limit"] = statistics.median(bare[1:])
    best = max(max(seen) for seen in rates.values())
    for shape, count in decodes.items():
        figures[shape]["limit"] = limits.decode_bytes(count) / best * 1e3
        figures[shape]["limit beside"] = limits.decode_bytes(count) / statistics.median(rates[shape][1:]) * 1e3
    for shape, row in figures.items():
        listed = ", ".join(f"{name} {took_ms:8.1f} ms" for name, took_ms in row.items())
        print(f"{shape:28} {listed}, native over limit {row['native'] / row['limit']:.2f}")
    print(f"best read rate {best / 1e9:.1f} GB/s")
    if options.json:
        told = {"machine": machine(), "versions": versions("torch"), "command": command(sys.argv)}
        told |= {"threads": options.threads, "read-bytes-per-s": best}
        options.json.write_text(json.dumps({"steps-ms": figures, **told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
