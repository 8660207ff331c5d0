"""The same closed loop played by `pagewire slo run`, GuideLLM and AIPerf, and what each makes of it.

The peers run from environments of their own (`make slo-peers-test` makes them), as their users would run them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parents[2] / ".venv-peers"
LIMIT_S = 300
READ = (
    *("time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms"),
    *("prompt_token_count", "output_token_count"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop: `users` with one request at a time, `requests` in all, each of `input` and `output` tokens."""

    users: int
    requests: int
    input: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Medians in milliseconds of the requests that were answered, and how many and how long those were.

    `tpot_ms` leaves the first token out, as ours does; `tpot_with_first_ms` is None of who does not tell it.
    """

    ttft_ms: float
    tpot_ms: float
    requests: int
    input_tokens: float
    output_tokens: float
    tpot_with_first_ms: float | None = None


def ours(url: str, load: Load, seed: int, folder: Path) -> Told:
    """Return what `pagewire slo run` tells; prompts of another seed are in no cache."""
    told = folder / f"ours-{seed}.json"
    _run(
        [
            *(sys.executable, "-P", "-m", "pagewire.cli.main", "slo", "run", "--url", url, "--json", str(told)),
            *("--concurrency", f"{load.users}", "--requests", f"{load.requests}", "--seed", f"{seed}"),
            *("--input", f"{load.input}", "--output", f"{load.output}", "--slo", "ttft=60s,tpot=60s"),
        ],
        folder,
    )
    run = json.loads(told.read_text())
    assert run["cached_tokens"] == 0, "prompts were asked before"
    answered = run["requests"] - run["failed"]
    return Told(
        ttft_ms=run["ttft_ms"]["p50"],
        tpot_ms=run["tpot_ms"]["p50"],
        requests=answered,
        input_tokens=run["input_tokens"] / answered,
        output_tokens=run["output_tokens"] / answered,
    )


def guidellm(url: str, load: Load, seed: int, folder: Path, *, model: Path) -> Told:
    """Return what GuideLLM tells: its inter-token latency is our TPOT, its TPOT includes the first token."""
    told = folder / f"guidellm-{seed}.json"
    backend = {
        "kind": "openai_http",
        "target": url,
        "model": model.name,
        "request_format": "/v1/completions",
        "extras": {"body": {"temperature": 0}},
    }
    _run(
        [
            *(f"{PEERS}/guidellm/bin/guidellm", "run", "--backend", json.dumps(backend)),
            *("--seed", f"kind=static,value={seed}"),
            *("--profile", f"kind=concurrent,streams={load.users}"),
            *("--constraint", f"kind=max_requests,count={load.requests}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={load.input},output_tokens={load.output}"),
            *("--tokenizer", f"kind=huggingface_auto,model={model}", "--output", f"kind=json,path={told}"),
        ],
        folder,
    )
    (benchmark,) = json.loads(told.read_text())["benchmarks"]
    # It gives null for what it was not asked to measure, such as attainment.
    metrics: dict[str, Any] = {name: each["successful"] for name, each in benchmark["metrics"].items() if name in READ}
    return Told(
        ttft_ms=metrics["time_to_first_token_ms"]["median"],
        tpot_ms=metrics["inter_token_latency_ms"]["median"],
        requests=len(benchmark["requests"]["successful"]),
        input_tokens=metrics["prompt_token_count"]["mean"],
        output_tokens=metrics["output_token_count"]["mean"],
        tpot_with_first_ms=metrics["time_per_output_token_ms"]["median"],
    )


def aiperf(url: str, load: Load, seed: int, folder: Path, *, model: Path) -> Told:
    """Return what AIPerf tells: its inter-token latency is our TPOT, a mean for each request."""
    told = folder / f"aiperf-{seed}"
    _run(
        [
            *(f"{PEERS}/aiperf/bin/aiperf", "profile", "--model", model.name, "--url", url, "--random-seed", f"{seed}"),
            *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(model), "--use-server-token-count"),
            *("--concurrency", f"{load.users}", "--request-count", f"{load.requests}"),
            *("--isl", f"{load.input}", "--osl", f"{load.output}", "--extra-inputs", "ignore_eos:true"),
            *("--extra-inputs", "temperature:0", "--ui", "none", "--artifact-dir", str(told)),
        ],
        folder,
        offline=False,  # offline it takes a folder's name for that of a repository
    )
    metrics = json.loads((told / "profile_export_aiperf.json").read_text())
    return Told(
        ttft_ms=metrics["time_to_first_token"]["p50"],
        tpot_ms=metrics["inter_token_latency"]["p50"],
        requests=int(metrics["request_count"]["avg"]),
        input_tokens=metrics["input_sequence_length"]["avg"],
        output_tokens=metrics["output_sequence_length"]["avg"],
    )


def _run(command: list[str], folder: Path, *, offline: bool = True) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    if offline:
        environ["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}"
