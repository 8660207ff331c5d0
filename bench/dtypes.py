"""What KV or weights in other dtypes hold, what they do to tokens, and what a decode step takes with them.

No processes and no queues: one engine for each kind, the model runner alone. Prompts are windows of this project's own
docs/decisions. The plain one chooses greedily; all are fed its choices (teacher forcing), and agreement is the share of
positions where another would have chosen the same. Perplexity is that of the prompts. Engines take turns at every
decode. `--model` is a Hugging Face folder.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

import timed_steps
import torch
from origin import parser_of, write_figures

from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.engine.assembly import Engine
from pagewire.engine.block import table_of
from pagewire.engine.config import EngineConfig
from pagewire.engine.step import Computed, Draw, Grant, Scoring, Step
from pagewire.text.tokenizer import Tokenizer

KINDS = "kv=fp8,kv=int8,weight=fp8,weight=int8"
GREEDY = Draw(sampling=SamplingParams(temperature=0.0), index=0, position=0)


def windows(model: Path, count: int, length: int) -> list[tuple[int, ...]]:
    """Return `count` prompts of `length` tokens, evenly spread over the written decisions."""
    pages = sorted((Path(__file__).parents[1] / "docs" / "decisions").glob("*.md"))
    tokens = Tokenizer(model).encode_now("\n".join(page.read_text(encoding="utf-8") for page in pages))
    if len(tokens) < count + length:
        raise ValueError(f"the decisions have {len(tokens)} tokens: too few for {count} prompts of {length}")
    apart = (len(tokens) - length) // count
    return [tuple(tokens[number * apart : number * apart + length]) for number in range(count)]


def step_of(
    engine: Engine, parts: list[tuple[int, int, tuple[int, ...]]], reach: int, scoring: Scoring | None = None
) -> Step:
    """Grant each (number, start, tokens) in blocks that are its sequence's own, which reaches to `reach` tokens."""
    num_blocks = engine.cache.layout.num_blocks
    per = num_blocks(reach)
    return Step(
        grants=tuple(
            Grant(
                request_id=str(number),
                tokens=tokens,
                start=start,
                block_ids=table_of(range(number * per, number * per + num_blocks(start + len(tokens)))),
                draw=GREEDY,
                scoring=scoring,
            )
            for number, start, tokens in parts
        )
    )


@dataclass
class Kind:
    """An engine that keeps KV or weights in some way, and what was seen of it."""

    engine: Engine
    logprobs: list[float] = field(default_factory=list)  # of the prompts' own tokens
    chosen: list[list[int]] = field(default_factory=list)  # [positions, prompts]
    steps_ms: list[float] = field(default_factory=list)  # of decodes

    def read(self, prompts: list[tuple[int, ...]], reach: int) -> None:
        """Compute the prompts, one after another, say how likely they were, choose what follows."""
        first: list[int] = []
        for number, prompt in enumerate(prompts):
            own = self._run([(number, 0, prompt)], reach, Scoring(first_row=0, targets=prompt[1:], num_top=0))
            first.append(own[str(number)].token or 0)
            self.logprobs += [each.logprob for each in own[str(number)].prompt_logprobs]
        self.chosen.append(first)

    def decode(self, fed: list[int], at: int, reach: int) -> None:
        """Choose what follows a token of each sequence."""
        start_s = time.perf_counter()
        computed = self._run([(number, at, (token,)) for number, token in enumerate(fed)], reach)
        self.steps_ms.append((time.perf_counter() - start_s) * 1e3)
        self.chosen.append([computed[str(number)].token or 0 for number in range(len(fed))])

    def _run(
        self, parts: list[tuple[int, int, tuple[int, ...]]], reach: int, scoring: Scoring | None = None
    ) -> Mapping[str, Computed]:
        return self.engine.runner.run(step_of(self.engine, parts, reach, scoring), lambda _step, _group: None)


def engine_of(options: argparse.Namespace, kind: str) -> Engine:
    """Load an engine that keeps what `kind` says otherwise: `plain`, or a setting and its value."""
    what, _, dtype = kind.partition("=")
    config = EngineConfig(
        model=str(options.model), role=Role.COLOCATED, dtype=options.dtype, threads=options.threads,
        kv_memory_bytes=1 << 30, **({f"{what}_dtype": dtype} if dtype else {}),
    )  # fmt: skip
    return timed_steps.engine_of(config)


def figures_of(kind: Kind, measure: Kind) -> dict[str, Any]:
    """Return what was found of one beside the other."""
    found, expected = torch.tensor(kind.chosen), torch.tensor(measure.chosen)
    token_bytes, plain_bytes = (each.engine.cache.layout.token_bytes for each in (kind, measure))
    return {
        "token-bytes": token_bytes,
        "capacity": plain_bytes / token_bytes,
        "agreement": float((found == expected).double().mean()),
        "positions": expected.numel(),
        "perplexity": math.exp(-statistics.fmean(kind.logprobs)),
        "decode-step-ms": statistics.median(kind.steps_ms),
    }


def main() -> None:
    """Parse, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--dtype", default="bfloat16", help="what is computed in")
    parser.add_argument("--kinds", default=KINDS, help="beside `plain`: kv or weight, and a dtype")
    parser.add_argument("--prompts", type=int, default=16, help="at once")
    parser.add_argument("--context", type=int, default=448, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="positions after each prompt")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prompts, reach = windows(options.model, options.prompts, options.context), options.context + options.tokens
    kinds = {name: Kind(engine_of(options, name)) for name in ("plain", *options.kinds.split(","))}
    measure = kinds["plain"]
    for kind in kinds.values():
        kind.read(prompts, reach)
    for at in range(options.context, reach - 1):
        fed = measure.chosen[-1]
        for kind in kinds.values():
            kind.decode(fed, at, reach)
    figures = {name: figures_of(kind, measure) for name, kind in kinds.items()}
    for name, one in figures.items():
        print(
            f"{name:12} {one['token-bytes']:6} bytes a token, {one['capacity']:.2f} of the tokens; agrees at"
            f" {one['agreement']:.2%} of {one['positions']}; perplexity {one['perplexity']:.3f};"
            f" {one['decode-step-ms']:.1f} ms a step"
        )
    write_figures(options.json, {"dtypes": figures}, "torch")


if __name__ == "__main__":
    main()
