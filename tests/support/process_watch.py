"""What processes hold: memory while they work, descriptors and threads at rest, and how fast the first grows.

Memory is counted in pages that nobody else has (USS), so a pool that front and engine share is nobody's growth;
resident pages are noted too. Knows nothing of what the processes do. A slope is that of a least-squares line, with its
standard error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil


@dataclass(frozen=True, slots=True)
class Memory:
    """One look at one process: how much work was done by then, and its pages in KiB."""

    done: int
    own_kib: float
    resident_kib: float


@dataclass(frozen=True, slots=True)
class Slope:
    """By how much something grows for each step, and the standard error of that."""

    value: float
    error: float


def slope(xs: Sequence[float], ys: Sequence[float]) -> Slope:
    """Return the least-squares slope of `ys` over `xs`; its error is infinite below three points.

    `value = sum((x - mean(x)) (y - mean(y))) / sum((x - mean(x))^2)`. Raises ValueError where all `xs` are the same.
    """
    count = len(xs)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    spread = sum((x - mean_x) ** 2 for x in xs)
    if spread == 0:
        raise ValueError("a slope needs two places")
    value = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    left = sum((y - mean_y - value * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return Slope(value, math.sqrt(left / (count - 2) / spread) if count > 2 else math.inf)


@dataclass(slots=True)
class ProcessWatch:
    """Looks at processes by name; `done` says how much work is done."""

    processes: Mapping[str, psutil.Process]
    done: Callable[[], int]
    seen: dict[str, list[Memory]] = field(default_factory=dict)

    async def look(self) -> None:
        """Note what each holds now."""
        done = self.done()
        for name, found in (await asyncio.to_thread(memory_of, self.processes)).items():
            self.seen.setdefault(name, []).append(Memory(done, *found))

    async def keep_looking(self, every_s: float) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(every_s)

    def growth(self, name: str, since: float = 0.5) -> Slope:
        """Return the KiB by which a process grew for each thousand of work done, over the looks from `since` on."""
        looks = self.seen[name]
        looks = looks[int(len(looks) * since) :]
        return slope([each.done / 1e3 for each in looks], [each.own_kib for each in looks])


def memory_of(processes: Mapping[str, psutil.Process]) -> dict[str, tuple[float, float]]:
    """Return the KiB that each process has alone, and all that are resident."""
    told = {name: process.memory_full_info() for name, process in processes.items()}
    return {name: (each.uss / 1024, each.rss / 1024) for name, each in told.items()}


def descriptors_of(processes: Mapping[str, psutil.Process]) -> dict[str, int]:
    """Return how many descriptors each has open."""
    return {name: process.num_fds() for name, process in processes.items()}


def threads_of(processes: Mapping[str, psutil.Process]) -> dict[str, int]:
    """Return how many threads each runs."""
    return {name: process.num_threads() for name, process in processes.items()}


def processor_s_of(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """Return the seconds of a processor that each has had since it began."""
    told = {name: process.cpu_times() for name, process in processes.items()}
    return {name: each.user + each.system for name, each in told.items()}
