"""What host memory in a file is worth: the time to a first token with a prompt computed, or kept by an engine before.

Each phase is a process of its own. `computed` and `pool`: an engine is asked for prompts of each length, then for the
same ones again; how long it takes to end, which moves its pool to the file, is `keep`. `file in memory`: the next one
is asked for them, with the file in the kernel's page cache. `file on disk`: the one after that, with the file written
back and dropped from it. Beside them what the disk allows: reading of the file, dropped again, 1 MiB at a time.
Milliseconds, medians over the prompts of a length. `--json PATH` writes the figures, machine and command.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

from origin import parser_of, write_figures

from pagewire.engine import LLM, SamplingParams

READ_BYTES = 1 << 20


def prompts(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Return `count` prompts of each length, no two of which begin alike: the same in each process."""
    chance = random.Random(1)
    return [[chance.randrange(1000, 40000) for _ in range(length)] for length in lengths for _ in range(count)]


def phase(model: str, folder: str, memory: str, asked: list[list[int]], turns: int) -> dict[str, Any]:
    """Ask a fresh engine on a folder for a token of each prompt, `turns` times; return seconds, and of its end."""
    llm = LLM(model, kv_memory_bytes=memory, host_kv_memory_bytes=memory, host_kv_dir=folder)
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), progress=False)
    seconds: list[list[float]] = []
    for _ in range(turns):
        seconds.append([])
        for prompt in asked:
            began_s = time.perf_counter()
            llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0.0), progress=False)
            seconds[-1].append(time.perf_counter() - began_s)
    load = llm.load()
    began_s = time.perf_counter()
    llm.close()
    return {"seconds": seconds, "keep_s": time.perf_counter() - began_s, "cached": load.prompt_tokens_cached}


def in_process(*arguments: Any) -> dict[str, Any]:
    """Run a phase in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(phase, *arguments).result()


def drop(path: Path) -> None:
    """Write a file back and have the kernel forget what it holds of it."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_rate(path: Path) -> float:
    """Return how fast the first half GiB of a file is read, in bytes per second."""
    drop(path)
    most, done, began_s = min(path.stat().st_size, 512 << 20), 0, time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while done < most:
            done += len(file.read(READ_BYTES))
    return done / (time.perf_counter() - began_s)


def main() -> None:
    """Run the phases, print, and write the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="smollm2", help="a Hugging Face folder, or a name of `pagewire model`")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8000])
    parser.add_argument("--prompts", type=int, default=5, help="of each length")
    parser.add_argument("--memory", default="2GiB", help="of the pool, and of the file")
    parser.add_argument("--folder", type=Path, help="where the file is to lie; a temporary folder by default")
    options = parser.parse_args()
    asked = prompts(options.lengths, options.prompts)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        told = (options.model, folder, options.memory, asked)
        first = in_process(*told, 2)
        second = in_process(*told, 1)
        (path,) = Path(folder).glob("*.kv")
        drop(path)
        third = in_process(*told, 1)
        rate = read_rate(path)
    (computed, pool), (warm,), (cold,) = first["seconds"], second["seconds"], third["seconds"]
    tokens = sum(map(len, asked))
    for name, found in (("second", second), ("third", third)):
        if found["cached"] < tokens - 16 * len(asked):
            raise RuntimeError(f"the {name} engine found {found['cached']} of {tokens} tokens")
    columns = {"computed": computed, "pool": pool, "file in memory": warm, "file on disk": cold}
    rows: dict[int, dict[str, float]] = {}
    for i, length in enumerate(options.lengths):
        of = slice(i * options.prompts, (i + 1) * options.prompts)
        rows[length] = {name: 1e3 * statistics.median(column[of]) for name, column in columns.items()}
        print(f"{length:6} tokens  " + "  ".join(f"{name} {value:.1f}" for name, value in rows[length].items()))
    print(f"disk: {rate / 1e9:.2f} GB/s; keep, s: {[round(each['keep_s'], 2) for each in (first, second, third)]}")
    figures = {"ms": rows, "disk_bytes_per_s": rate, "keep_s": [each["keep_s"] for each in (first, second, third)]}
    write_figures(options.json, figures, "torch")


if __name__ == "__main__":
    main()
