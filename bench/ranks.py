"""What ranks of a pod cost and gain: a sum over them beside gloo's gathering, and steps of a model with one and two.

Sums: two processes add `[T, 1024]` in bfloat16, ours and gloo's in turns, by the same clock; gloo gathers all parts, as
ours do, and both are added up alike. Steps: a model of Qwen3-0.6B's shape and random weights, threads shared out by the
engine: its prompt, and a token of one and of eight sequences, by the difference of two lengths of answer. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))

import random_models
import torch
import torch.distributed as dist
from origin import origin

from pagewire.core.sampling import SamplingParams
from pagewire.engine.llm import LLM
from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.rank_parts import RankParts

HIDDEN = 1024
ROWS = (1, 32, 256, 1024, 2048)
SHAPE = "Qwen3-0.6B"
PROMPT, SHORT, LONG = 256, 1, 33
BATCHES = (1, 8)


def sums(rank: int, fd: int, peer_fd: int, store: str, repeats: int) -> list[dict[str, float]]:
    """Be one of two ranks; return a row for each number of rows, in microseconds."""
    torch.set_num_threads(1)
    ours = RankParts(Shard(rank=rank, num_ranks=2), fd, [socket.socket(fileno=peer_fd)], 60.0)
    group = dist.ProcessGroupGloo(dist.FileStore(store, 2), rank, 2, timedelta(seconds=60))

    def gathered(part: torch.Tensor) -> torch.Tensor:
        parts = part.new_empty(2, *part.shape)  # [R, T, H]
        group.allgather([list(parts.unbind())], [part]).wait()
        return (parts[0].float() + parts[1]).to(part.dtype)

    rows = []
    for num_rows in ROWS:
        part = torch.randn(num_rows, HIDDEN).bfloat16()
        took: dict[str, list[float]] = {"ours": [], "gloo": []}
        for _ in range(repeats):
            for name, add in (("ours", ours.sum), ("gloo", gathered)):
                took[name].append(_timed(lambda add=add, part=part: add(part)))
        rows.append({"rows": num_rows, **{name: statistics.median(each) * 1e6 for name, each in took.items()}})
    return rows


def two_processes(repeats: int) -> list[dict[str, float]]:
    """Return what rank 0 of two measured."""
    fd, (near, far) = os.memfd_create("ranks"), socket.socketpair(type=socket.SOCK_SEQPACKET)
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                [sys.executable, "-P", __file__, "--rank", str(rank), "--fds", str(fd), str(end.fileno()),
                 "--store", f"{folder}/store", "--repeats", str(repeats)],
                pass_fds=(fd, end.fileno()), stdout=subprocess.PIPE,
            )
            for rank, end in ((0, near), (1, far))
        ]  # fmt: skip
        told, _ = (each.communicate()[0] for each in started)
    found: list[dict[str, float]] = json.loads(told)
    return found


def steps(model: Path, num_ranks: int, repeats: int) -> dict[str, float]:
    """Return milliseconds of a prompt, and of a token of each size of batch."""
    with LLM(model, tensor_parallel=num_ranks, kv_memory_bytes=1 << 30, max_model_len=1024) as llm:
        prompts = _prompts()

        def asked(num: int, length: int) -> float:
            batch = [next(prompts) for _ in range(num)]
            return _timed(
                lambda: llm.generate(batch, SamplingParams(max_tokens=length, temperature=0, ignore_eos=True))
            )

        asked(1, SHORT)
        row = {}
        for num in BATCHES:
            short, long = (statistics.median(asked(num, length) for _ in range(repeats)) for length in (SHORT, LONG))
            row |= {f"prompt_ms_{num}": short * 1e3, f"token_ms_{num}": (long - short) / (LONG - SHORT) * 1e3}
        return row


def _prompts() -> Iterator[list[int]]:
    chance = torch.Generator().manual_seed(1)
    while True:
        yield torch.randint(100, 100_000, (PROMPT,), generator=chance).tolist()


def _timed(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def main() -> None:
    """Print all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--fds", type=int, nargs=2)
    parser.add_argument("--store")
    asked = parser.parse_args()
    if asked.rank is not None:
        print(json.dumps(sums(asked.rank, *asked.fds, asked.store, asked.repeats)))
        return
    found = {**origin("torch"), "sums_us": two_processes(asked.repeats)}
    with tempfile.TemporaryDirectory() as folder:
        model = random_models.write(
            Path(folder) / "model", random_models.CONFIGS[SHAPE], torch.bfloat16, torch.device("cpu")
        )
        found["steps"] = [{"ranks": num, **steps(model, num, 3)} for num in (1, 2, 1, 2)]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
