"""Has the pages of a mapping present before anybody waits for them.

A page that is touched for the first time costs a fault, and a new one has to be zeroed as well: together twenty times
what a copy into it costs, in every process that maps it. Linux 5.14 and newer do it ahead; where it cannot be done,
pages come as they are touched. Knows mappings, and nothing of what lies in them.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of <linux/mman.h>; the mmap module does not name them
STEP_BYTES = 16 << 20


def prefault(memory: mmap.mmap, *, writable: bool) -> Iterator[int]:
    """Populate step by step, so that a caller may do something else in between; yields the bytes that are done.

    A step takes some milliseconds where the pages exist, about 15 ms where they are new.
    """
    with contextlib.suppress(OSError):
        for start in range(0, len(memory), STEP_BYTES):
            size = min(STEP_BYTES, len(memory) - start)
            memory.madvise(_POPULATE_WRITE if writable else _POPULATE_READ, start, size)
            yield start + size
