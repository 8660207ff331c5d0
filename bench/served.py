"""What serving takes: the requests of `bench/engine.py --device cuda` streamed over HTTP, beside the engine offline.

A colocated pod on the GPU behind a router of `--workers` processes; every request is a stream of its own, all are sent
at once, by `--clients` processes, and every event is counted as it comes. Offline, the same requests go through the
same engine in this process, after the cluster has ended. Weights are random numbers in a model's shape, its tokenizer
is made up. What a token costs each process is told with it: at N tokens/s a process must need less than 1/N s of one.

`--json PATH` writes figures, machine, command. `--tiny` runs it on a CPU: to see that it works. `--paced MS` does so
with an engine that computes nothing, and whose steps take MS: for what a token costs all others, without a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

import device_engine
import psutil
import random_models
import torch
from device_engine import TEMPERATURE, Scale
from origin import parser_of, write_figures
from pagewire_servers import up
from processes import children_of, leave_on_signals

SHAPE = "Qwen3-0.6B"
PROCESSES = {"engine": "pagewire.engine.process", "front": "colocated", "router": "router"}  # by a word of each one's
PACED = Path(__file__).parent / "support" / "paced_engine"
PACED_TOKENS = 400
Request = tuple[list[int], int]


class Cluster:
    """A router and a colocated pod, as `pagewire up` starts them."""

    def __init__(self, model: Path, scale: Scale, workers: int, folder: Path, step_ms: float) -> None:
        settings = {
            "--colocated": 1, "--device": scale.device.type, "--workers": workers, "--max-num-seqs": scale.max_num_seqs,
            "--max-num-batched-tokens": max(8192, scale.max_num_seqs), "--chunk-size": 4096, "--dtype": scale.dtype,
            "--kv-memory": scale.kv_bytes, "--max-model-len": scale.max_model_len, "--start-timeout-s": 180,
            "--model": model, "--log-dir": folder,
        }  # fmt: skip
        environ = {}
        if step_ms:
            paths = (os.environ.get("PYTHONPATH", ""), str(PACED))
            environ = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "BENCH_PACE_MS": str(step_ms)}
        flags = [part for flag in settings.items() for part in flag]
        self._server, said = up(["--no-prefix-caching", *flags], folder / "up.log", environ)
        self.url: str = said["router"]["http"]

    def cpu_s(self) -> dict[str, list[float]]:
        """Return the processor time of each process so far, by what it does."""
        found: dict[str, list[float]] = {what: [] for what in PROCESSES}
        for process in children_of(self._server.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):  # one that only started others
                words, spent = process.cmdline(), process.cpu_times()
                for what, word in PROCESSES.items():
                    if word in words:
                        found[what].append(spent.user + spent.system)
        return found

    def stop(self) -> None:
        """End it."""
        self._server.stop()


class Clients:
    """Processes that stream requests, each an even share of them: one alone would be what is measured."""

    def __init__(self, number: int, url: str, requests: list[Request]) -> None:
        seeded = [(prompt, max_tokens, seed) for seed, (prompt, max_tokens) in enumerate(requests)]
        shares = [share for first in range(number) if (share := seeded[first::number])]
        program = [sys.executable, str(Path(__file__).parent / "support" / "stream_counts.py")]
        self._processes = [
            subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in shares
        ]
        for process, share in zip(self._processes, shares, strict=True):
            _say(process, json.dumps({"url": url, "temperature": TEMPERATURE, "requests": share}))
        for process in self._processes:
            _hear(process)

    def stream(self) -> list[dict[str, float]]:
        """Have all of them send at once; return what each says of what came."""
        for process in self._processes:
            _say(process, "go")
        return [json.loads(_hear(process)) for process in self._processes]

    def stop(self) -> None:
        """End those that still run."""
        for process in self._processes:
            process.kill()
            process.wait()


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a client ended with code {process.wait()}")
    return line


def streamed(url: str, requests: list[Request], num_clients: int) -> list[dict[str, float]]:
    """Send all requests at once; return what each client says."""
    clients = Clients(num_clients, url, requests)
    try:
        return clients.stream()
    finally:
        clients.stop()


def serve(cluster: Cluster, requests: list[Request], num_clients: int) -> dict[str, Any]:
    """Send all requests at once; return tokens, events, seconds, and the processor time that a token took of each."""
    streamed(cluster.url, [(requests[0][0], 2)], 1)
    before_s = cluster.cpu_s()
    came = streamed(cluster.url, requests, num_clients)
    after_s = cluster.cpu_s()
    started_s = min(each["started-s"] for each in came)
    seconds = max(each["ended-s"] for each in came) - started_s
    tokens = sum(max_tokens for _, max_tokens in requests)
    spent_s = {
        what: [after - before for before, after in zip(before_s[what], after_s[what], strict=True) if after > before]
        for what in PROCESSES
    }
    spent_s["client"] = [each["cpu-s"] for each in came]
    return {
        "tokens": tokens, "events": sum(each["events"] for each in came), "seconds": seconds,
        "tokens-per-s": tokens / seconds,
        "last-first-token-s": max(each["last-first-s"] for each in came) - started_s,
        "cpu-us-per-token": {
            what: {"processes": len(each), "all": sum(each) / tokens * 1e6, "busiest": max(each) / tokens * 1e6}
            for what, each in spent_s.items()
        },
    }  # fmt: skip


def table(served: dict[str, Any]) -> Iterator[str]:
    """Return the lines for people."""
    yield ", ".join(f"{name} {value:.4g}" for name, value in served.items() if isinstance(value, int | float))
    yield f"{'processor time of a token, us':32} {'processes':>9} {'all':>7} {'busiest':>8}"
    for what, each in served["cpu-us-per-token"].items():
        yield f"{what:32} {each['processes']:9} {each['all']:7.1f} {each['busiest']:8.1f}"


def paced_scale() -> Scale:
    """Return as many requests as on a device, each of the same length, for an engine that computes nothing."""
    sizes = {"num_requests": 256, "lengths": (PACED_TOKENS, PACED_TOKENS), "max_num_seqs": 256}
    return replace(Scale.tiny(), **sizes, max_model_len=2048, kv_bytes=256 << 20)


def offline_row(folder: Path, scale: Scale, path: Path | None) -> dict[str, Any]:
    """Return the figures of the engine alone: those in a file of `bench/engine.py`, or measured here."""
    if path is None:
        return device_engine.requests_row(SHAPE, device_engine.load(folder, scale), scale)
    rows = json.loads(path.read_text())["rows"]
    return next(row for row in rows if row["what"] == "requests" and "peer" not in row)


def main() -> None:
    """Serve, compute offline, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--workers", type=int, default=4, help="router processes")
    parser.add_argument("--clients", type=int, default=4, help="processes that stream")
    parser.add_argument("--models", type=Path, help="a folder that models are kept in")
    parser.add_argument("--offline", type=Path, help="of bench/engine.py: its figure is taken, and none measured")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, to see that it works")
    parser.add_argument("--paced", type=float, metavar="MS", help="on a CPU, with steps that sleep so long; no offline")
    options = parser.parse_args()
    leave_on_signals()
    on_cpu = options.tiny or options.paced
    scale = paced_scale() if options.paced else Scale.tiny() if options.tiny else Scale.full(torch.device("cuda"))
    config = random_models.TINY["tiny"] if on_cpu else random_models.CONFIGS[SHAPE]
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as temporary:
        folder = (options.models or Path(temporary)) / SHAPE
        if not folder.exists():
            random_models.write(folder, config, getattr(torch, scale.dtype), scale.device)
            torch.cuda.empty_cache()
        cluster = Cluster(folder, scale, options.workers, Path(temporary), options.paced or 0.0)
        try:
            served = serve(cluster, scale.requests(), options.clients)
        finally:
            cluster.stop()
        print("\n".join(table(served)), flush=True)
        found: dict[str, Any] = {"served": served, "workers": options.workers, "clients": options.clients}
        if options.paced:
            found["step-ms"] = options.paced
        else:
            found["offline"] = offline = offline_row(folder, scale, options.offline)
            found["served-over-offline"] = over = served["tokens-per-s"] / offline["tokens-per-s"]
            print(f"offline {offline['tokens-per-s']:.0f} tokens/s; served over offline {over:.3f}", flush=True)
    write_figures(options.json, found, "torch", "triton", gpu="none" if on_cpu else torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
