"""What a step of the engine costs on this CPU, natively and in plain torch, beside what this machine allows.

No processes and no queues: the model runner alone, greedy, steps repeated, backends and limits taking turns. A decode's
limit is reading all weights and all KV once at the best rate seen, and beside that at the median rate right before its
own steps, for hosts that read at one rate now and at another then; a prompt's is the model's bare linears and causal
attention in torch, one call each. `--model` is a Hugging Face folder. Milliseconds, medians, and in brackets the first
and third quartiles; a limit at the best rate has none.

`--setting` measures something else: the native engine with a setting off and on, two engines in this process whose
steps take turns, and turns at being first, 1 GiB read before each. Beside the medians of both it says what one is over
the other turn by turn. Where the memory of an engine lies differs between any two, so that a ratio near 1 may be
that and nothing else.

`--avx2` measures as on a processor that has no more than AVX2, as most laptops': our ops are built so, and torch's held
to it, where they ask their environment.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).parent / "support"))

import torch
from origin import parser_of, write_figures
from repeats import quartiles
from timed_steps import engine_of, milliseconds, step_of
from torch.nn import functional

from pagewire.core import pages
from pagewire.core.messages import Role
from pagewire.engine.assembly import Engine
from pagewire.engine.config import EngineConfig
from pagewire.engine.model.decoder_config import common
from pagewire.engine.step import Step
from pagewire.kernels import native_ops

CONTEXT = 512
DECODES = {f"decode, {count} x context {CONTEXT}": count for count in (1, 8, 32)}
PREFILLS = {f"prefill, {length} tokens": length for length in (128, 512, 2048)}
CHUNK = 512
MEMORY_BYTES = 1 << 30  # more than any cache holds


# What torch and its libraries read when they are first asked for something.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
SETTINGS: dict[str, dict[str, Any]] = {
    "deterministic": {"deterministic": True},
    "int8-weights": {"weight_dtype": "int8"},
}


def config_of(options: argparse.Namespace, setting: Mapping[str, Any] = MappingProxyType({})) -> EngineConfig:
    """Return what an engine is loaded with."""
    return EngineConfig(
        model=options.model, role=Role.COLOCATED, dtype=options.dtype, threads=options.threads,
        kv_memory_bytes=1 << 30, **setting,
    )  # fmt: skip


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


def shapes_of(engine: Engine) -> dict[str, list[Step]]:
    """Return what is run, by its name: a decode, or the chunks of a prompt."""
    shapes = {shape: [step_of(engine, count, CONTEXT - 1, 1)] for shape, count in DECODES.items()}
    for shape, length in PREFILLS.items():
        shapes[shape] = [step_of(engine, 1, at, min(CHUNK, length - at)) for at in range(0, length, CHUNK)]
    return shapes


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both backends beside the limits, print, return the figures."""
    engines = {name: engine_of(config_of(options), is_native=name == "native") for name in ("native", "torch")}
    one = engines["native"]
    limits = Limits(one, json.loads((Path(options.model) / "config.json").read_text()))
    shapes = shapes_of(one)
    rates: dict[str, list[float]] = {shape: [] for shape in shapes}
    found: dict[str, dict[str, list[float]]] = {}
    for shape, steps in shapes.items():
        found[shape] = {name: [] for name in (*engines, *(("limit",) if shape in PREFILLS else ()))}
        for repeat in range(options.repeats + 1):
            rates[shape].append(limits.read_rate())
            took_ms = {"limit": limits.prefill_ms(PREFILLS[shape])} if shape in PREFILLS else {}
            took_ms |= {name: milliseconds(engine, steps) for name, engine in engines.items()}
            if repeat:
                for name, times in found[shape].items():
                    times.append(took_ms[name])
    best = max(max(seen) for seen in rates.values())
    for shape, count in DECODES.items():
        size = limits.decode_bytes(count)
        found[shape]["limit"] = [size / best * 1e3]
        found[shape]["limit beside"] = [size / rate * 1e3 for rate in rates[shape][1:]]
    told = told_of(found, "native", "limit")
    print(f"best read rate {best / 1e9:.1f} GB/s")
    return {**told, "read-bytes-per-s": best}


def measure_setting(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what a setting costs or saves, print, return the figures."""
    engines = {"off": engine_of(config_of(options)), "on": engine_of(config_of(options, SETTINGS[options.setting]))}
    one = engines["off"]
    limits = Limits(one, json.loads((Path(options.model) / "config.json").read_text()))
    found: dict[str, dict[str, list[float]]] = {}
    for shape, steps in shapes_of(one).items():
        found[shape] = {name: [] for name in engines}
        for repeat in range(options.repeats + 1):
            for name in sorted(engines, reverse=repeat % 2 == 0):
                limits.read_rate()  # both begin with caches full of something else
                took_ms = milliseconds(engines[name], steps)
                if repeat:
                    found[shape][name].append(took_ms)
    told = told_of(found, "on", "off")
    ratios: dict[str, dict[str, float]] = {}
    for shape, times in found.items():
        first, middle, third = quartiles([on / off for on, off in zip(times["on"], times["off"], strict=True)])
        ratios[shape] = {"median": middle, "p25": first, "p75": third}
        print(f"{shape:28} on over off, turn by turn {middle:.3f} ({first:.3f} - {third:.3f})")
    return {**told, "on-over-off": ratios}


def told_of(found: dict[str, dict[str, list[float]]], own: str, beside: str) -> dict[str, Any]:
    """Print a row for each shape; return medians and quartiles, milliseconds."""
    marks = {shape: {name: quartiles(times) for name, times in row.items()} for shape, row in found.items()}
    for shape, row in marks.items():
        listed = ", ".join(
            f"{name} {middle:.1f}" + (f" ({first:.1f} - {third:.1f})" if len(found[shape][name]) > 1 else "") + " ms"
            for name, (first, middle, third) in row.items()
        )
        print(f"{shape:28} {listed}; {own} over {beside} {row[own][1] / row[beside][1]:.2f}")
    return {
        "steps-ms": {shape: {name: middle for name, (_, middle, _) in row.items()} for shape, row in marks.items()},
        "steps-quartiles-ms": {
            shape: {name: [first, third] for name, (first, _, third) in row.items() if len(found[shape][name]) > 1}
            for shape, row in marks.items()
        },
    }


def main() -> None:
    """Parse, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="a Hugging Face folder")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--repeats", type=int, default=7, help="of each step")
    parser.add_argument("--setting", choices=SETTINGS, help="that one on and off, in turns")
    parser.add_argument("--avx2", action="store_true", help="as on a processor that has no more")
    options = parser.parse_args()
    load = native_ops.load
    if options.avx2:
        os.environ.update(AVX2)
        load = functools.partial(load, "-march=haswell")
    torch.set_num_threads(options.threads)
    with mock.patch.object(native_ops, "load", load):
        figures = measure_setting(options) if options.setting else measure(options)
    write_figures(options.json, {**figures, "threads": options.threads}, "torch")


if __name__ == "__main__":
    main()
