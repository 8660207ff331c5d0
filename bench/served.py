"""What serving takes: the requests of `bench/engine.py --device cuda` streamed over HTTP, beside the engine offline.

A colocated pod on the GPU behind a router of `--workers` processes; every request is a stream of its own, all are sent
at once, and every event is counted as it comes. Offline, the same requests go through the same engine in this process,
after the cluster has ended. Weights are random numbers in a model's shape, its tokenizer is made up. `--json PATH`
writes figures, machine, command. `--tiny` runs it on a CPU: to see that it works.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).parent / "support"))

import device_engine
import random_models
import torch
from device_engine import TEMPERATURE, Scale
from machine import command, machine, versions
from processes import ServerProcess

SHAPE = "Qwen3-0.6B"
Request = tuple[list[int], int]


class Cluster:
    """A router and a colocated pod, as `pagewire up` starts them."""

    def __init__(self, model: Path, scale: Scale, workers: int, folder: Path) -> None:
        settings = {
            "--colocated": 1, "--device": scale.device.type, "--workers": workers, "--max-num-seqs": scale.max_num_seqs,
            "--max-num-batched-tokens": max(8192, scale.max_num_seqs), "--chunk-size": 4096, "--dtype": scale.dtype,
            "--kv-memory": scale.kv_bytes, "--max-model-len": scale.max_model_len, "--start-timeout-s": 180,
            "--port": 0, "--grpc-port": 0, "--model": model, "--log-dir": folder,
        }  # fmt: skip
        flags = [str(part) for flag in settings.items() for part in flag]
        up = [sys.executable, "-P", "-m", "pagewire.cli.main", "up", "--no-prefix-caching", *flags]
        environ = {"HF_HUB_OFFLINE": "1"}
        self._server = ServerProcess(up, folder / "up.log", environ, reads_stdout=True)
        assert self._server.process.stdout is not None
        line = self._server.process.stdout.readline()
        if not line:
            self._server.stop()
            raise RuntimeError(f"the cluster did not start:\n{self._server.tail}")
        self.url: str = json.loads(line)["router"]["http"]

    def stop(self) -> None:
        """End it."""
        self._server.stop()


async def stream(url: str, request: Request, seed: int) -> tuple[int, float]:
    """Stream one request; return the events with a token that came, and when the first did."""
    prompt, max_tokens = request
    asked = {
        "model": "", "prompt": prompt, "max_tokens": max_tokens, "temperature": TEMPERATURE, "seed": seed,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip
    body, parts = json.dumps(asked).encode(), urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
    kind, length = "Content-Type: application/json", f"Content-Length: {len(body)}"
    head = ("POST /v1/completions HTTP/1.1", "Host: bench", kind, length)
    writer.write("\r\n".join((*head, "", "")).encode() + body)
    said = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in said.partition(b"\r\n")[0]:
        raise RuntimeError(f"{said.decode()} {(await reader.read(1000)).decode()}")
    count, first_s, kept = 0, 0.0, b""
    while b"[DONE]" not in kept:
        part = await reader.read(1 << 16)
        if not part:
            raise RuntimeError("a stream ended before its time")
        first_s = first_s or time.perf_counter()
        kept += part
        whole, _, kept = kept.rpartition(b"\n\n")
        count += whole.count(b'"text"')
        kept = kept if b"[DONE]" not in whole else b"[DONE]"
    writer.close()
    return count, first_s


async def serve(url: str, requests: list[Request]) -> dict[str, float]:
    """Send all requests at once; return tokens, events and seconds."""
    await stream(url, (requests[0][0], 2), 0)
    started_s = time.perf_counter()
    came = await asyncio.gather(*(stream(url, request, seed) for seed, request in enumerate(requests)))
    seconds = time.perf_counter() - started_s
    tokens = sum(max_tokens for _, max_tokens in requests)
    return {
        "tokens": tokens, "events": sum(count for count, _ in came), "seconds": seconds,
        "tokens-per-s": tokens / seconds, "last-first-token-s": max(first_s for _, first_s in came) - started_s,
    }  # fmt: skip


def main() -> None:
    """Serve, compute offline, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4, help="router processes")
    parser.add_argument("--models", type=Path, help="a folder that models are kept in")
    parser.add_argument("--offline", type=Path, help="of bench/engine.py: its figure is taken, and none measured")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, to see that it works")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    scale = Scale.tiny() if options.tiny else Scale.full(torch.device("cuda"))
    config = random_models.TINY["tiny"] if options.tiny else random_models.CONFIGS[SHAPE]
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as temporary:
        folder = (options.models or Path(temporary)) / SHAPE
        if not folder.exists():
            random_models.write(folder, config, getattr(torch, scale.dtype), scale.device)
            torch.cuda.empty_cache()
        cluster = Cluster(folder, scale, options.workers, Path(temporary))
        try:
            served = asyncio.run(serve(cluster.url, scale.requests()))
        finally:
            cluster.stop()
        print(", ".join(f"{name} {value:.4g}" for name, value in served.items()), flush=True)
        if options.offline:
            rows = json.loads(options.offline.read_text())["rows"]
            offline = next(row for row in rows if row["what"] == "requests" and "peer" not in row)
        else:
            offline = device_engine.requests_row(SHAPE, device_engine.load(folder, scale), scale)
    over = served["tokens-per-s"] / offline["tokens-per-s"]
    print(f"offline {offline['tokens-per-s']:.0f} tokens/s; served over offline {over:.3f}", flush=True)
    if options.json:
        gpu = "none" if options.tiny else torch.cuda.get_device_name()
        found = {"served": served, "offline": offline, "served-over-offline": over, "workers": options.workers}
        told = {
            "machine": machine() | {"gpu": gpu},
            "versions": versions("torch", "triton"),
            "command": command(sys.argv),
        }
        options.json.write_text(json.dumps({**found, **told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
