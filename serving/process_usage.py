"""What the processes of a pod cost their machine, as the kernel counts it.

Reads /proc when asked, so that counting costs nobody anything. Knows process ids and what they are called. Invariant: a
process that is gone, or a system without /proc, shows nothing rather than something wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pagewire.serving.sample import Sample

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUsage:
    """Of processes by what they do, as in {"front": 17, "engine": 18}."""

    def __init__(self, pids: Mapping[str, int], proc: Path = Path("/proc")) -> None:
        self._pids = pids
        self._proc = proc

    def samples(self) -> Iterator[Sample]:
        """Yield seconds of CPU since its start and resident memory of each; shared pages count for all who map them."""
        for name, pid in self._pids.items():
            labels = {"process": name}
            try:
                # The second field is the command in brackets, and may hold anything.
                stat = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
                pages = (self._proc / str(pid) / "statm").read_text().split()[1]
            except OSError:
                continue
            busy_s = (int(stat[11]) + int(stat[12])) / _TICKS_PER_S
            yield Sample("process_cpu_seconds", labels, busy_s, "CPU seconds that the process has used", is_total=True)
            yield Sample("process_resident_bytes", labels, int(pages) * _PAGE_BYTES, "Memory of the process")
