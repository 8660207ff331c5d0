"""Memory in huge pages where the kernel has them, and present before anybody waits for it.

A page that is touched for the first time costs a fault, and a new one has to be zeroed as well: together twenty times
what a copy into it costs, in every process that maps it. And memory that every step reads from end to end is read up
to twice as fast in pages of 2 MiB: a processor remembers the places of few, and prefetches to the end of one. Where the
kernel does neither, pages come small and as they are touched. Knows mappings, and nothing of what lies in them.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator

from pagewire.core.buffer_address import BufferAddress

HUGE_BYTES = 2 << 20
STEP_BYTES = 16 << 20
# Of <linux/mman.h>; the mmap module does not name them. Linux 5.14 populates, 6.1 collapses.
_POPULATE_READ, _POPULATE_WRITE, _COLLAPSE = 22, 23, 25


def map_file(fd: int, num_bytes: int, *, writable: bool) -> mmap.mmap:
    """Map the first bytes of a file, shared, where huge pages fit: at a multiple of their size. Raises OSError.

    Raises ValueError when the file is shorter.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)

    def attempt() -> tuple[mmap.mmap, int]:
        memory = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, protection)
        return memory, _address(memory) % HUGE_BYTES

    memory, beyond = attempt()
    if beyond == 0 or num_bytes < HUGE_BYTES:
        return memory
    # Addresses are given out downwards: what is mapped in between moves the next one to where it should be. Where
    # another thread maps at the same moment, this one is small pages, and nothing is wrong.
    memory.close()
    with mmap.mmap(-1, beyond):
        return attempt()[0]


def map_anonymous(num_bytes: int) -> mmap.mmap:
    """Map fresh memory of this process alone, huge from the first touch on. Raises OSError."""
    memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def prefault(memory: mmap.mmap, *, writable: bool) -> Iterator[int]:
    """Populate step by step, so that a caller may do something else in between; yields the bytes that are done.

    A step takes some milliseconds where the pages exist, about 15 ms where they are new.
    """
    with contextlib.suppress(OSError):
        for start in range(0, len(memory), STEP_BYTES):
            size = min(STEP_BYTES, len(memory) - start)
            if writable:
                _collapse(memory, start, size)
            memory.madvise(_POPULATE_WRITE if writable else _POPULATE_READ, start, size)
            yield start + size


def _collapse(memory: mmap.mmap, start: int, size: int) -> None:
    """Make huge pages of whole ones, if the kernel will; it asks for one small page in each to begin with."""
    with contextlib.suppress(OSError):
        for place in range(start, start + size, HUGE_BYTES):
            memory.madvise(_POPULATE_WRITE, place, mmap.PAGESIZE)
        memory.madvise(_COLLAPSE, start, size)


def _address(memory: mmap.mmap) -> int:
    with BufferAddress(memory) as address:
        return address
