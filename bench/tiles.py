"""Which tiles attention is fastest with on this GPU: what the table in `kernels/gpu/tiles.py` is chosen by.

Every candidate of a kind (decodes, decodes of several tokens, chunks; of bfloat16 or quantised pools) is run on the
first of several batches, those that are not far behind on the next, and so on; told is each one's time over that of the
best for the same batch, and their geometric mean, best first. Replayed in CUDA graphs, over layers that take turns,
with random numbers. Candidates are compiled by processes side by side first: one that the processor cannot hold is left
out. `--json PATH` writes all ratios.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton

sys.path.append(str(Path(__file__).parent / "support"))

from gpu_clock import seconds
from origin import parser_of, write_figures

from pagewire.kernels.gpu.paged_attention import AttentionPlan, paged_attention
from pagewire.kernels.gpu.tiles import Heads, Processor, Tiles
from pagewire.kernels.gpu.work_list import Sequences, WorkList
from pagewire.kernels.kv_elements import encode
from pagewire.kernels.ragged import Ragged

COLD_BYTES = 256 << 20
FAR_BEHIND = 1.15  # times as long as the best, in the geometric mean of the batches so far
SHARED_BYTES = 227 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Batches that one entry of the table serves, each (sequences, tokens to attend from, tokens in the cache)."""

    heads: tuple[int, int, int]  # query heads, KV heads, head dim
    batches: tuple[tuple[int, int, int], ...]
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    warps: tuple[int, ...]
    stages: tuple[int, ...]
    programs: tuple[int, ...]
    least_keys: tuple[int, ...] = (256,)
    stored: torch.dtype = torch.bfloat16
    block_size: int = 16

    def candidates(self) -> Iterator[Tiles]:
        """Yield those whose keys and values on their way fit into shared memory, as often as they are to be there."""
        for rows, keys, warps, stages, programs, least_keys in itertools.product(
            self.rows, self.keys, self.warps, self.stages, self.programs, self.least_keys
        ):
            on_their_way = keys * self.heads[2] * self.stored.itemsize * (stages - 1)
            if on_their_way * min(programs, 2 if rows > 32 else programs) <= SHARED_BYTES:
                yield Tiles(rows, keys, warps, stages, 1, programs, least_keys)


DECODES = ((64, 1, 2048), (64, 1, 512), (8, 1, 2048), (1, 1, 8192), (256, 1, 1024))
VERIFIES = ((64, 8, 2048), (8, 8, 2048))
CHUNKS = ((2, 8192, 8192), (8, 2048, 2048), (1, 512, 4096))
FEW = {
    "rows": (16,), "keys": (32, 64, 128), "warps": (1, 2, 4), "stages": (3, 5), "programs": (1, 2, 4, 6, 8),
    "least_keys": (64, 256),
}  # fmt: skip
MANY = {"rows": (64, 128), "keys": (64, 128), "warps": (4, 8), "stages": (3, 4, 5), "programs": (1, 2, 3)}
KINDS = {
    "decode-128": Kind(heads=(32, 8, 128), batches=DECODES, **FEW),
    "decode-128-of-2": Kind(heads=(12, 2, 128), batches=DECODES, **FEW),
    "chunk-128": Kind(heads=(32, 8, 128), batches=CHUNKS, **MANY),
    "verify-128": Kind(heads=(32, 8, 128), batches=VERIFIES, **FEW | {"rows": (32,), "programs": (1, 2, 3)}),
    "decode-64": Kind(heads=(32, 8, 64), batches=DECODES, **FEW),
    "chunk-64": Kind(heads=(32, 8, 64), batches=CHUNKS, **MANY),
    "decode-128-fp8": Kind(heads=(32, 8, 128), batches=DECODES, stored=torch.float8_e4m3fn, **FEW),
    "chunk-128-fp8": Kind(heads=(32, 8, 128), batches=CHUNKS, stored=torch.float8_e4m3fn, **MANY),
}


class Bench:
    """One batch of a kind, on the device."""

    def __init__(self, kind: Kind, batch: tuple[int, int, int], cold_bytes: int) -> None:
        num_sequences, query_len, kv_len = batch
        num_q_heads, num_kv_heads, head_dim = kind.heads
        self._device = torch.device("cuda")
        of_each = -(-kv_len // kind.block_size)
        num_blocks = num_sequences * of_each
        layer_bytes = num_blocks * 2 * num_kv_heads * kind.block_size * head_dim * kind.stored.itemsize
        self._num_layers = max(1, -(-cold_bytes // layer_bytes))
        shape = (num_blocks, self._num_layers, 2, num_kv_heads, kind.block_size, head_dim)
        self._pool = encode(torch.randn(shape, device=self._device, dtype=torch.bfloat16), kind.stored)
        table = torch.randperm(num_blocks).view(num_sequences, of_each).to(self._device)
        ragged = Ragged(
            query_lens=(query_len,) * num_sequences, kv_lens=(kv_len,) * num_sequences, block_table=table,
            block_size=kind.block_size,
        )  # fmt: skip
        self._q = torch.randn(ragged.num_rows, num_q_heads, head_dim, device=self._device, dtype=torch.bfloat16)
        self._sequences = Sequences.of(ragged)
        self._heads = Heads(num_q_heads, num_kv_heads, head_dim, torch.bfloat16, kind.stored)
        self._processor = Processor.of(self._device)

    def attend(self, tiles: Tiles, layer: int, plan: AttentionPlan | None = None) -> AttentionPlan:
        """Attend by these tiles; return the plan, for further layers."""
        if plan is None:
            work = WorkList.build(
                self._sequences, self._heads, tiles, self._processor, window=0,
                is_decode=self._sequences.longest_decode > 0,
            )  # fmt: skip
            torch.cuda.synchronize()  # attention takes a list that a plan has already for one that is complete
            plan = AttentionPlan(
                sequences=self._sequences, processor=self._processor, window=0, lists={self._heads: (work,)}
            )
        paged_attention(self._q, self._pool, layer, plan, self._heads.head_dim**-0.5)
        return plan

    def us(self, tiles: Tiles) -> float:
        """Return the microseconds of a layer."""
        plan = self.attend(tiles, 0)
        layers = range(self._num_layers)
        works = [lambda layer=layer: self.attend(tiles, layer, plan) for layer in layers]  # type: ignore[misc]
        return seconds(self._device, works, rounds=3) * 1e6


def compile_some(name: str, some: Sequence[Tiles]) -> list[Tiles]:
    """Compile the kernels of some candidates; return those that the processor can hold."""
    bench, held = Bench(KINDS[name], (1, KINDS[name].batches[0][1], 64 + KINDS[name].batches[0][1]), 1), []
    for tiles in some:
        try:
            bench.attend(tiles, 0)
            torch.cuda.synchronize()
        except (triton.runtime.errors.OutOfResources, RuntimeError) as error:
            print(f"{name} {tiles}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        held.append(tiles)
    return held


def compile_all(name: str, processes: ProcessPoolExecutor, num_processes: int) -> list[Tiles]:
    """Compile all candidates of a kind side by side; return those that the processor can hold."""
    candidates = list(KINDS[name].candidates())
    kernels: dict[tuple[int, ...], list[Tiles]] = {}  # those that differ in programs alone are the same one
    for each in candidates:
        kernels.setdefault((each.rows, each.keys, each.num_warps, each.num_stages), []).append(each)
    firsts = [each[0] for each in kernels.values()]
    futures = [processes.submit(compile_some, name, firsts[at::num_processes]) for at in range(num_processes)]
    held = [tiles for future in futures for tiles in future.result()]
    return [each for first in held for each in kernels[first.rows, first.keys, first.num_warps, first.num_stages]]


def main() -> None:
    """Parse, compile, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--kinds", default="", help=f"by commas, of {', '.join(KINDS)}; all")
    parser.add_argument("--best", type=int, default=8, help="how many of each kind are printed")
    options = parser.parse_args()
    torch.manual_seed(0)
    found: list[dict[str, object]] = []
    num_processes = max(1, (os.cpu_count() or 2) - 2)
    with ProcessPoolExecutor(num_processes, mp_context=multiprocessing.get_context("spawn")) as processes:
        names = [name for name in options.kinds.split(",") if name] or list(KINDS)
        held = {name: compile_all(name, processes, num_processes) for name in names}
    for name, candidates in held.items():
        over: dict[Tiles, list[float]] = {tiles: [] for tiles in candidates}
        best: list[float] = []
        for batch in KINDS[name].batches:
            bench = Bench(KINDS[name], batch, COLD_BYTES)
            us = {tiles: bench.us(tiles) for tiles in over}
            del bench
            best.append(min(us.values()))
            over = {tiles: [*ratios, us[tiles] / best[-1]] for tiles, ratios in over.items()}
            over = {tiles: ratios for tiles, ratios in over.items() if statistics.geometric_mean(ratios) <= FAR_BEHIND}
        order = sorted(over, key=lambda tiles: statistics.geometric_mean(over[tiles]))
        print(f"{name}: of {len(candidates)}; best us {', '.join(f'{us:.1f}' for us in best)}", flush=True)
        for tiles in order[: options.best]:
            shape = f"{tiles.rows} x {tiles.keys}, {tiles.num_warps} warps, {tiles.num_stages} stages, {tiles.programs}"
            shape += f", from {tiles.least_keys}"
            told = ", ".join(f"{ratio:.3f}" for ratio in over[tiles])
            print(f"  {shape:42} {statistics.geometric_mean(over[tiles]):.3f}: {told}", flush=True)
        found += [{"kind": name, "tiles": asdict(tiles), "over-best": over[tiles], "best-us": best} for tiles in order]
        write_figures(options.json, {"tiles": found}, "torch", gpu=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
