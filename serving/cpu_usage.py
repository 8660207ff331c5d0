"""How busy the cores that a pod may run on are, and how full the machine's memory, as the kernel counts them.

For a pod whose device is the CPU, in the place of what a GPU's driver tells. Reads /proc when asked. Knows no process:
whoever computes there, computes on this device. Invariants: what cannot be known is not shown; a share is of at least
`LEAST_S` seconds, however often it is asked for, but for the first one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from pagewire.serving.device_samples import memory, utilization
from pagewire.serving.sample import Sample

NAME = "cpu"
LEAST_S = 1.0
_IDLE = (3, 4)  # of a core's columns in /proc/stat those in which it had nothing to do: idle, iowait
_COLUMNS = 8  # the two after these are guests', which are in the first two


class CpuUsage:
    """Of these cores, all that the process may run on where none are named."""

    def __init__(
        self,
        cores: Collection[int] | None = None,
        proc: Path = Path("/proc"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if cores is None:
            cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        self._names = {f"cpu{core}" for core in cores}
        self._proc = proc
        self._now = now
        self._seen = self._ticks()
        self._seen_s = now()
        self._share: float | None = None

    def samples(self) -> Iterator[Sample]:
        """Yield the share of the time since the last look in which the cores computed, and the machine's memory."""
        if self._share is None or self._now() - self._seen_s >= LEAST_S:
            (busy, total), seen = self._seen, self._ticks()
            self._seen, self._seen_s = seen, self._now()
            # A counter may go back a little, as that of waiting for disks does.
            self._share = min(1.0, max(0.0, (seen[0] - busy) / (seen[1] - total))) if seen[1] > total else None
        if self._share is not None:
            yield from utilization(NAME, self._share)
        room = self._memory()
        if {"MemTotal", "MemAvailable"} <= room.keys():
            yield from memory(NAME, room["MemTotal"] - room["MemAvailable"], room["MemTotal"])

    def _ticks(self) -> tuple[int, int]:
        """Return how long the cores have computed, and been there, in ticks."""
        busy = total = 0
        for line in self._text("stat").splitlines():
            name, _, columns = line.partition(" ")
            if name in self._names:
                ticks = [int(each) for each in columns.split()[:_COLUMNS]]
                total += sum(ticks)
                busy += sum(ticks) - sum(ticks[at] for at in _IDLE)
        return busy, total

    def _memory(self) -> dict[str, int]:
        lines = (line.split() for line in self._text("meminfo").splitlines())
        return {line[0].rstrip(":"): int(line[1]) << 10 for line in lines if len(line) > 1}

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text()
        except OSError:
            return ""
