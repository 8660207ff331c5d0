"""How fast blocks go from one process's pool into another's, by each transport, beside what the machine allows.

Two processes, as pods are (`local`: one); random bytes; sizes of a shipment from 64 KiB to 1 GiB. In the same run, in
turns: the same bytes through a raw TCP socket, by one memcpy, by one that another process wakes us for where the
transport is `shm`, through gRPC or gloo alone where it is `grpc` or `collective`, by one copy within the device where
it is `cuda_ipc`. Checksums are on for the transports, where a CPU touches the payload, and off for the limits.
Descriptors are what a carrier has copied one by one: blocks, or where it makes one of adjacent blocks (nixl, cuda_ipc)
the runs of each message; all blocks of these shipments are adjacent. `ms` is the median repeat's time, `first ms` the
part of it until the first blocks were there. A transport that cannot run here is told as not measured.
`--engine FOLDER` also measures what a transfer at full rate does to the steps of an engine beside it. `--json PATH`
writes figures, machine, command.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import xxhash

sys.path.append(str(Path(__file__).parent / "support"))

from origin import parser_of, write_figures
from step_times import step_times
from transfer_runs import GB, Bench, bench

from pagewire.core import pages
from pagewire.kvtransfer.summed_copy import summed_copy

SMALL_KIB, BLOCK_KIB = 64, 360  # a block of SmolLM2-135M: bf16, 16 tokens
DEVICE_BLOCK_KIB = 1792  # one of Qwen3-0.6B, 28 layers: the least that is worth a GPU
SIZES_KIB = (64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
WAYS = ("tcp", "memcpy", "woken", "bare", "gloo", "device")
BESIDE = {
    "local": ("memcpy",),
    "shm": ("tcp", "memcpy", "woken"),
    "tcp": ("tcp", "memcpy"),
    "grpc": ("tcp", "memcpy", "bare"),
    "collective": ("tcp", "memcpy", "gloo"),
    "cuda_ipc": ("device",),
}
OTHERS = ("tcp", "memcpy")
SIZES_HELP = f"""KiB of a shipment, in blocks of {BLOCK_KIB} KiB, as SmolLM2-135M has them, on a GPU of
{DEVICE_BLOCK_KIB}, as Qwen3-0.6B has them, with 28 layers; of {SMALL_KIB} where that is less than two of those. A GPU
needs room for three times the largest: a pool of each process's, and what is copied beside."""
RATES = ("TCP", "memcpy", "woken", "gRPC", "gloo", "device")
HEAD = (
    *("transport", "MiB", "GB/s", "best", *RATES, *(f"/{name}" for name in RATES)),
    *("spans", "msgs", "cpu s/GB", "ms", "first ms"),
)


async def measure(transport: str, sizes_kib: list[int], repeats: int) -> list[dict[str, Any]]:
    """All sizes of one transport."""
    if transport == "cuda_ipc" and not importlib.import_module("device").is_at_hand():
        print(f"{transport:>10} not measured: no CUDA device is at hand")
        return [{"transport": transport, "not-measured": "no CUDA device is at hand"}]
    rows: list[dict[str, Any]] = []
    large_kib = DEVICE_BLOCK_KIB if transport == "cuda_ipc" else BLOCK_KIB
    for block_kib, sizes in (
        (SMALL_KIB, [size for size in sizes_kib if size < 2 * large_kib]),
        (large_kib, [size for size in sizes_kib if size >= 2 * large_kib]),
    ):
        if not sizes:
            continue
        async with bench(transport, block_kib, max(sizes) // block_kib) as ends:
            for size in sizes:
                times = repeats if transport == "cuda_ipc" else max(3, min(repeats, (4 << 20) // size))
                rows.append(await one_size(ends, transport, size // block_kib, times))
                print_row(rows[-1])
    return rows


async def one_size(ends: Bench, transport: str, num_blocks: int, repeats: int) -> dict[str, Any]:
    """One row of the table."""
    ways = BESIDE.get(transport, OTHERS)
    figures = await ends.measure(num_blocks, ways, repeats)
    row: dict[str, Any] = {
        "transport": transport,
        "bytes": figures.num_bytes,
        "gb-per-s": figures.rate("ship"),
        "gb-per-s-best": figures.rate("ship", best=True),
        "blocks": figures.num_blocks,
        "descriptors": figures.descriptors,
        "messages": figures.messages,
        "ms": statistics.median(figures.seconds["ship"]) * 1e3,
        "first-ms": statistics.median(figures.seconds["first"]) * 1e3,
        "cpu-s-per-gb": statistics.median(figures.cpu_s) / (figures.num_bytes / GB),
    }
    for way in ways:
        row[f"{way}-gb-per-s"] = figures.rate(way)
        row[f"over-{way}"] = figures.rate("ship") / figures.rate(way)
        row[f"over-{way}-best"] = figures.rate("ship", best=True) / figures.rate(way, best=True)
    return row


def print_row(row: dict[str, Any]) -> None:
    """For people."""
    rates = [row["gb-per-s"], row["gb-per-s-best"], *(row.get(f"{way}-gb-per-s") for way in WAYS)]
    ratios = [row.get(f"over-{way}") for way in WAYS]
    cells = [f"{value:.2f}" if value is not None else "-" for value in (*rates, *ratios)]
    print(
        f"{row['transport']:>10} {row['bytes'] / 2**20:>8.2f} " + " ".join(f"{cell:>8}" for cell in cells)
        + f" {row['descriptors']:>8} {row['messages']:>8} {row['cpu-s-per-gb']:>8.2f}"
        + f" {row['ms']:>8.3f} {row['first-ms']:>8.3f}",
        flush=True,
    )  # fmt: skip


def checksum_rates(num_bytes: int = 256 << 20) -> dict[str, float]:
    """GB/s of xxh3_64, of a copy, and of a taker's copy that sums, over blocks in pools that no cache holds."""
    source, target = pages.map_anonymous(num_bytes), pages.map_anonymous(num_bytes)
    blocks = [slice(at, at + (BLOCK_KIB << 10)) for at in range(0, num_bytes, BLOCK_KIB << 10)][:-1]
    theirs, ours = memoryview(source), memoryview(target)
    for _ in pages.prefault(source, writable=True):
        pass  # what was never written is one page of zeros, in the cache

    def summed() -> None:
        for block in blocks:
            xxhash.xxh3_64_intdigest(theirs[block], block.start)

    def copied() -> None:
        for block in blocks:
            ours[block] = theirs[block]

    def copied_and_summed() -> None:
        for block in blocks:
            summed_copy(ours[block], theirs[block], block.start)

    ways = {"checksum": summed, "copy": copied, "checked-copy": copied_and_summed}
    copied()  # both are there
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            start_s = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start_s)
    moved = len(blocks) * (BLOCK_KIB << 10) / GB
    return {f"{name}-gb-per-s": moved / statistics.median(each) for name, each in seconds.items()}


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all that was asked for."""
    print("".join((f"{HEAD[0]:>10} ", *(f"{name:>8} " for name in HEAD[1:]))))
    rows = []
    for transport in options.transports.split(","):
        rows += await measure(transport, options.sizes_kib, options.repeats)
    rates = checksum_rates()
    figures: dict[str, Any] = {"transfers": rows, **rates}
    print(", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()))
    if options.engine:
        for transport in (name for name in options.transports.split(",") if name not in ("local", "cuda_ipc")):
            steps = await step_times(options.engine, transport, options.step_s)
            figures[f"engine-steps-beside-{transport}"] = steps
            print(f"engine steps beside {transport}: " + ", ".join(f"{name} {at:.2f}" for name, at in steps.items()))
    return figures


def main() -> None:
    """Parse, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--transports", default="local,shm,tcp,grpc,cuda_ipc", help="which, with commas")
    parser.add_argument("--sizes-kib", type=int, nargs="+", default=list(SIZES_KIB), help=SIZES_HELP)
    parser.add_argument(
        "--repeats", type=int, default=15, help="repeats of small shipments; large ones have fewer on the host"
    )
    parser.add_argument("--engine", default="", help="a model's folder: measure its steps beside transfers as well")
    parser.add_argument("--step-s", type=float, default=8.0, help="seconds of stepping in each condition")
    options = parser.parse_args()
    figures = asyncio.run(run(options))
    gpu = importlib.import_module("device").name() if "cuda_ipc" in options.transports.split(",") else ""
    write_figures(options.json, figures, "grpcio", "xxhash", gpu=gpu)


if __name__ == "__main__":
    main()
