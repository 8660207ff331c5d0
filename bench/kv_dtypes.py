"""What each KV dtype holds, what it does to greedy tokens, and what a decode step over it costs.

No processes and no queues: one engine for each dtype, the model runner alone. Prompts are windows of this project's own
docs/decisions. The first dtype chooses greedily; all are fed its choices (teacher forcing), and agreement is the share
of positions where another would have chosen the same. Engines take turns at every step. `--model` is a Hugging Face
folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

import torch
from machine import command, machine, versions

from pagewire.core.clock import MonotonicClock
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.engine.assembly import Engine, assemble, warm_up
from pagewire.engine.config import EngineConfig
from pagewire.engine.step import Draw, Grant, Step
from pagewire.text.tokenizer import Tokenizer

GREEDY = Draw(sampling=SamplingParams(temperature=0.0), index=0, position=0)


def windows(model: Path, count: int, length: int) -> list[tuple[int, ...]]:
    """Return `count` prompts of `length` tokens, evenly spread over the written decisions."""
    pages = sorted((Path(__file__).parents[1] / "docs" / "decisions").glob("*.md"))
    tokens = Tokenizer(model).encode_now("\n".join(page.read_text(encoding="utf-8") for page in pages))
    if len(tokens) < count + length:
        raise ValueError(f"the decisions have {len(tokens)} tokens: too few for {count} prompts of {length}")
    apart = (len(tokens) - length) // count
    return [tuple(tokens[number * apart : number * apart + length]) for number in range(count)]


def step_of(engine: Engine, parts: list[tuple[int, int, tuple[int, ...]]], reach: int) -> Step:
    """Grant each (number, start, tokens) in blocks that are its sequence's own, which reaches to `reach` tokens."""
    num_blocks = engine.cache.layout.num_blocks
    per = num_blocks(reach)
    return Step(
        grants=tuple(
            Grant(
                request_id=str(number),
                tokens=tokens,
                start=start,
                block_ids=tuple(range(number * per, number * per + num_blocks(start + len(tokens)))),
                draw=GREEDY,
            )
            for number, start, tokens in parts
        )
    )


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--dtype", default="bfloat16", help="what is computed in")
    parser.add_argument("--kv-dtypes", default="bfloat16,fp8,int8", help="the first is the measure")
    parser.add_argument("--prompts", type=int, default=16, help="at once")
    parser.add_argument("--context", type=int, default=448, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="positions after each prompt")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prompts, reach = windows(options.model, options.prompts, options.context), options.context + options.tokens
    engines: dict[str, Engine] = {}
    for kv_dtype in options.kv_dtypes.split(","):
        config = EngineConfig(
            model=str(options.model), role=Role.COLOCATED, dtype=options.dtype, kv_dtype=kv_dtype,
            threads=options.threads, kv_memory_bytes=1 << 30,
        )  # fmt: skip
        engines[kv_dtype] = assemble(config, MonotonicClock())
        warm_up(engines[kv_dtype])
    measure = next(iter(engines))

    def run(parts: list[tuple[int, int, tuple[int, ...]]]) -> tuple[dict[str, list[int]], dict[str, float]]:
        """Return each engine's tokens, and its milliseconds."""
        chosen, took_ms = {}, {}
        for kv_dtype, engine in engines.items():
            step = step_of(engine, parts, reach)
            start_s = time.perf_counter()
            computed = engine.runner.run(step, lambda _step, _group: None)
            took_ms[kv_dtype] = (time.perf_counter() - start_s) * 1e3
            chosen[kv_dtype] = [computed[str(number)].token for number, _, _ in parts]
        return chosen, took_ms

    found: dict[str, list[list[int]]] = {kv_dtype: [] for kv_dtype in engines}  # [positions, prompts]
    times: dict[str, list[float]] = {kv_dtype: [] for kv_dtype in engines}
    first: dict[str, list[int]] = {kv_dtype: [] for kv_dtype in engines}
    for number, prompt in enumerate(prompts):
        chosen, _ = run([(number, 0, prompt)])
        for kv_dtype, tokens in chosen.items():
            first[kv_dtype] += tokens
    for kv_dtype in engines:
        found[kv_dtype].append(first[kv_dtype])
    for at in range(options.context, reach - 1):
        fed = found[measure][-1]
        chosen, took_ms = run([(number, at, (token,)) for number, token in enumerate(fed)])
        for kv_dtype, tokens in chosen.items():
            found[kv_dtype].append(tokens)
            times[kv_dtype].append(took_ms[kv_dtype])
    figures: dict[str, Any] = {}
    expected = torch.tensor(found[measure])
    measure_bytes = engines[measure].cache.layout.token_bytes
    for kv_dtype, engine in engines.items():
        layout = engine.cache.layout
        figures[kv_dtype] = {
            "token-bytes": layout.token_bytes,
            "capacity": measure_bytes / layout.token_bytes,
            "agreement": float((torch.tensor(found[kv_dtype]) == expected).double().mean()),
            "positions": expected.numel(),
            "decode-step-ms": statistics.median(times[kv_dtype]),
        }
        one = figures[kv_dtype]
        print(
            f"{kv_dtype:10} {layout.token_bytes:6} bytes a token, {one['capacity']:.2f} of {measure}'s tokens;"
            f" agrees at {one['agreement']:.2%} of {expected.numel()}; {one['decode-step-ms']:.1f} ms a step"
        )
    if options.json:
        told = {"machine": machine(), "versions": versions("torch"), "command": command(sys.argv)}
        options.json.write_text(json.dumps({"kv-dtypes": figures, **told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
