"""What `bench/engine.py --device cuda` prints and writes: limits, steps, idle time, requests, and peers on the same."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import device_engine
import random_models
import torch
from device_engine import Scale
from device_limits import limits
from origin import origin

SERVED = "Qwen3-0.6B"  # the shape that requests are measured with
PEER_S = 200.0  # the longest that a peer may take
PARTS = ("steps", "chunks", "idle", "requests", "peers")


def run(
    scale: Scale, models: Sequence[str], parts: Sequence[str], ways: Sequence[str], models_folder: Path,
    path: Path | None,
) -> None:  # fmt: skip
    """Measure the parts on the models named ([]: all), print each row once it is there, write all to `path`.

    Peers are transformers in these `ways`; models are written to `models_folder` where they are not there.
    """
    is_cuda = scale.device.type == "cuda"
    configs = random_models.CONFIGS if is_cuda else random_models.TINY
    served = SERVED if is_cuda else next(iter(configs))
    torch.manual_seed(0)
    size, side = (1 << 30, 8192) if is_cuda else (1 << 20, 64)
    found = limits(scale.device, getattr(torch, scale.dtype), size, side)
    print(", ".join(f"{name} {_short(value)}" for name, value in found.items() if name != "copies"), flush=True)
    if is_cuda:
        torch.cuda.empty_cache()
    gpu = torch.cuda.get_device_name(scale.device) if is_cuda else "none: interpreted"
    told = origin("torch", "transformers", "triton", gpu=gpu)
    rows: list[dict[str, Any]] = []

    def tell(row: dict[str, Any]) -> None:
        rows.append(row)
        print(", ".join(f"{key} {_short(value)}" for key, value in row.items()), flush=True)
        if path is not None:  # what is known stays, whatever comes
            path.write_text(json.dumps({**found, "rows": rows, **told}, indent=1) + "\n")

    for name in models or tuple(configs):
        folder = models_folder / name
        if not folder.exists():
            random_models.write(folder, configs[name], getattr(torch, scale.dtype), scale.device)
        rates: dict[str, float] = {}
        # Peers first: as yet nothing of the device is ours.
        for way in ways if "peers" in parts and name == served else ():
            row = _peer(folder, way, scale)
            if "tokens-per-s" in row:
                rates[way] = row["tokens-per-s"]
            tell(row)
        own = _measure_own(
            name, folder, scale, found, parts if name == served else [*{"steps", "chunks"} & {*parts}], tell
        )
        if own is not None and rates:
            over = {f"over-{way}": own / rate for way, rate in rates.items()}
            tell({"what": "requests-over-peers", "model": name, **over})


def _measure_own(
    name: str, folder: Path, scale: Scale, found: dict[str, Any], parts: Sequence[str], tell: Any
) -> float | None:
    """Tell the rows of our engine; return its tokens per second, None where requests are not measured."""
    rate = None
    if {"steps", "chunks", "idle", "requests"} & {*parts}:
        engine = device_engine.load(folder, scale)
        if "steps" in parts:
            for row in device_engine.decode_rows(name, folder, engine, scale, found):
                tell(row)
        if "chunks" in parts:
            for row in device_engine.chunk_rows(name, folder, engine, scale, found):
                tell(row)
        if "idle" in parts:
            tell(device_engine.idle_row(name, engine, scale))
        if "requests" in parts:
            row = device_engine.requests_row(name, engine, scale)
            rate = row["tokens-per-s"]
            tell(row)
        del engine
    gc.collect()
    if scale.device.type == "cuda":
        torch.cuda.empty_cache()  # peers have the device to themselves
    return rate


def _peer(folder: Path, way: str, scale: Scale) -> dict[str, Any]:
    script = Path(__file__).with_name("transformers_batches.py")
    row: dict[str, Any] = {
        "what": "requests", "model": folder.name, "peer": f"transformers {way}", "requests": scale.peer_requests,
    }  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, str(script), str(folder), way, scale.device.type, scale.dtype],
            input=json.dumps(scale.requests()[: scale.peer_requests]), stdout=subprocess.PIPE, text=True,
            timeout=PEER_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return row | {"not-measured": f"it took more than {PEER_S:.0f} s"}
    if done.returncode or not done.stdout.strip():
        return row | {"not-measured": f"it ended with code {done.returncode}"}
    told = json.loads(done.stdout)
    rate = told["output-tokens"] / told["seconds"]
    row |= {"output-tokens": told["output-tokens"], "seconds": told["seconds"], "tokens-per-s": rate}
    row["attention"] = told["attention"]
    if told["output-tokens"] != told["wanted"]:
        row["wanted"] = told["wanted"]
    return row


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
