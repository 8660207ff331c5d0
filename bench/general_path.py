"""What a step costs of models that are not plain: capped scores, sinks, heads of odd sizes, mixtures of experts.

Random weights of published shapes with fewer layers. Two engines of each model take turns: one that attends natively,
in place, with products of its own, and one without native code, that copies each context out of its blocks. All but the
Llama is transformers' own for the rest. Milliseconds, medians and quartiles.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

import torch
from origin import parser_of, write_figures
from repeats import by_turns, quartiles, told
from timed_steps import engine_of, step_of, timed
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    OlmoConfig,
    OlmoeConfig,
    PretrainedConfig,
)

from pagewire.core.messages import Role
from pagewire.engine.config import EngineConfig

COMMON: dict[str, Any] = {"vocab_size": 4096, "num_hidden_layers": 4, "max_position_embeddings": 8192}
MODELS: dict[str, Callable[[], PretrainedConfig]] = {
    "Gemma 2 2B: capped scores, every second layer a window": lambda: Gemma2Config(**COMMON),
    "gpt-oss 20B, 4 experts: sinks, every second layer a window": lambda: GptOssConfig(**COMMON, num_local_experts=4),
    "OpenLLaMA 3B: heads of 100": lambda: LlamaConfig(
        **COMMON, hidden_size=3200, intermediate_size=8640, num_attention_heads=32
    ),
    "OLMo, general path: heads of 100": lambda: OlmoConfig(
        **COMMON, hidden_size=1600, intermediate_size=4320, num_attention_heads=16
    ),
    "OLMoE 1B-7B, two layers: 8 of 64 experts": lambda: OlmoeConfig(
        **{**COMMON, "num_hidden_layers": 2}, intermediate_size=1024
    ),
}
LONGEST = 4096
STEPS = {  # sequences, where they begin, tokens of each
    "decode, 8 x context 512": (8, 511, 1),
    f"decode, 8 x context {LONGEST}": (8, LONGEST - 1, 1),
    "prompt, 512 tokens": (1, 0, 512),
}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure both engines of each model, print, return the figures."""
    found: dict[str, Any] = {}
    for number, (name, shape) in enumerate(MODELS.items()):
        model = AutoModelForCausalLM.from_config(shape(), dtype=torch.bfloat16)
        model.save_pretrained(folder / str(number))
        del model
        config = EngineConfig(
            model=str(folder / str(number)), role=Role.COLOCATED, dtype="bfloat16", threads=options.threads,
            kv_memory_bytes=3 << 30, max_model_len=LONGEST + 1,
        )  # fmt: skip
        engines = {way: engine_of(config, is_native=way == "native") for way in ("native", "torch")}
        for kind, (count, start, length) in STEPS.items():
            step = step_of(engines["native"], count, start, length)
            times_ms = by_turns({way: timed(engine, step) for way, engine in engines.items()}, options.repeats)
            marks = {way: quartiles(each) for way, each in times_ms.items()}
            ratio = marks["torch"][1] / marks["native"][1]
            print(f"{name}; {kind}: {told(times_ms, '.1f')} ms; {ratio:.2f} times", flush=True)
            found.setdefault(name, {})[kind] = marks
    return found


def main() -> None:
    """Parse, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--threads", type=int, default=2, help="of the engines")
    parser.add_argument("--repeats", type=int, default=7, help="of each step")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options, Path(folder))
    write_figures(options.json, {"quartiles-ms": figures}, "torch", "transformers")


if __name__ == "__main__":
    main()
