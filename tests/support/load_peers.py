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
READ = ("time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop: `users` with one request at a time, `requests` in all, each of `input` and `output` tokens.

    They are asked as texts or token ids, or as chats, whose prompts are as long as the server says.
    """

    users: int
    requests: int
    input: int
    output: int
    is_chat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One answered request by the id that the server knows it by; `tpot_ms` leaves the first token out."""

    request_id: str
    ttft_ms: float
    tpot_ms: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Medians in milliseconds as the tool itself states them, and all requests that were answered.

    `tpot_ms` leaves the first token out, as ours does; `tpot_with_first_ms` is None of who does not tell it.
    """

    ttft_ms: float
    tpot_ms: float
    requests: tuple[Timed, ...]
    tpot_with_first_ms: float | None = None

    @property
    def request_ids(self) -> set[str]:
        """What the server knows them by."""
        return {each.request_id for each in self.requests}


def ours(url: str, load: Load, seed: int, folder: Path, *, model: Path) -> Told:
    """Return what `pagewire slo run` tells; prompts of another seed are in no cache. It needs no `model`."""
    del model
    told, records = folder / f"ours-{seed}.json", folder / f"ours-{seed}.jsonl"
    _run(
        [
            *(sys.executable, "-P", "-m", "pagewire.cli.main", "slo", "run", "--url", url, "--json", str(told)),
            *("--concurrency", f"{load.users}", "--requests", f"{load.requests}", "--seed", f"{seed}"),
            *("--input", f"{load.input}", "--output", f"{load.output}", "--slo", "ttft=60s,tpot=60s"),
            *("--api", "chat" if load.is_chat else "completions", "--records", str(records)),
        ],
        folder,
    )
    run = json.loads(told.read_text())
    assert not run["cached_tokens"], "prompts were asked before"
    return Told(
        ttft_ms=run["ttft_ms"]["p50"],
        tpot_ms=run["tpot_ms"]["p50"],
        requests=tuple(
            Timed(
                request_id=each["request_id"],
                ttft_ms=1e3 * each["ttft_s"],
                tpot_ms=1e3 * each["tpot_s"],
                input_tokens=each["input_tokens"],
                output_tokens=each["output_tokens"],
            )
            for each in _lines(records)
        ),
    )


def guidellm(url: str, load: Load, seed: int, folder: Path, *, model: Path) -> Told:
    """Return what GuideLLM tells: its inter-token latency is our TPOT, its TPOT includes the first token."""
    told = folder / f"guidellm-{seed}.json"
    backend = {
        "kind": "openai_http",
        "target": url,
        "model": model.name,
        "request_format": "/v1/chat/completions" if load.is_chat else "/v1/completions",
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
            "--disable-progress",
        ],
        folder,
    )
    (benchmark,) = json.loads(told.read_text())["benchmarks"]
    # It gives null for what it was not asked to measure, such as attainment.
    metrics: dict[str, Any] = {name: each["successful"] for name, each in benchmark["metrics"].items() if name in READ}
    return Told(
        ttft_ms=metrics["time_to_first_token_ms"]["median"],
        tpot_ms=metrics["inter_token_latency_ms"]["median"],
        requests=tuple(
            Timed(
                request_id=each["response_id"].partition("-")[2],  # it sends no id of its own
                ttft_ms=each["time_to_first_token_ms"],
                tpot_ms=each["inter_token_latency_ms"],
                input_tokens=each["prompt_tokens"],
                output_tokens=each["output_tokens"],
            )
            for each in benchmark["requests"]["successful"]
        ),
        tpot_with_first_ms=metrics["time_per_output_token_ms"]["median"],
    )


def aiperf(url: str, load: Load, seed: int, folder: Path, *, model: Path) -> Told:
    """Return what AIPerf tells: its inter-token latency is our TPOT, a mean for each request.

    It is kept from reading the server's metrics three times a second, which is work that the others do not give it.
    """
    told = folder / f"aiperf-{seed}"
    _run(
        [
            *(f"{PEERS}/aiperf/bin/aiperf", "profile", "--model", model.name, "--url", url, "--random-seed", f"{seed}"),
            *("--endpoint-type", "chat" if load.is_chat else "completions", "--streaming"),
            *("--tokenizer", str(model), "--use-server-token-count", "--no-server-metrics", "--no-gpu-telemetry"),
            *("--concurrency", f"{load.users}", "--request-count", f"{load.requests}"),
            *("--isl", f"{load.input}", "--osl", f"{load.output}", "--extra-inputs", "ignore_eos:true"),
            *("--extra-inputs", "temperature:0", "--ui", "none", "--artifact-dir", str(told)),
        ],
        folder,
        offline=False,  # offline it takes a folder's name for that of a repository
    )
    metrics = json.loads((told / "profile_export_aiperf.json").read_text())
    lines = _lines(told / "profile_export.jsonl")
    answered = [(each["metadata"], {name: one["value"] for name, one in each["metrics"].items()}) for each in lines]
    return Told(
        ttft_ms=metrics["time_to_first_token"]["p50"],
        tpot_ms=metrics["inter_token_latency"]["p50"],
        requests=tuple(
            Timed(
                request_id=request["x_request_id"],
                ttft_ms=measured["time_to_first_token"],
                tpot_ms=measured["inter_token_latency"],
                input_tokens=measured["input_sequence_length"],
                output_tokens=measured["output_sequence_length"],
            )
            for request, measured in answered
        ),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _run(command: list[str], folder: Path, *, offline: bool = True) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    if offline:
        environ["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}"
