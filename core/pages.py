"""Memory in huge pages where the kernel has them, and present before anybody waits for it.

A page that is touched for the first time costs a fault, and a new one has to be zeroed as well: together twenty times
what a copy into it costs, in every process that maps it. And memory that every step reads from end to end is read up
to twice as fast in pages of 2 MiB: a processor remembers the places of few, and prefetches to the end of one. Where the
kernel does neither, pages come small and as they are touched. Knows mappings, and nothing of what lies in them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Iterator

from pagewire.core.buffer_address import BufferAddress

HUGE_BYTES = 2 << 20
STEP_BYTES = 16 << 20
TRIES = 16
# Of <linux/mman.h>; the mmap module does not name them. Linux 5.14 populates, 6.1 collapses.
_POPULATE_READ, _POPULATE_WRITE, _COLLAPSE = 22, 23, 25
_FAILED = ctypes.c_void_p(-1).value  # MAP_FAILED


def map_file(fd: int, num_bytes: int, *, writable: bool) -> mmap.mmap:
    """Map the first bytes of a file, shared, where huge pages fit: at a multiple of their size. Raises OSError.

    Raises ValueError when the file is shorter.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    with contextlib.ExitStack() as misplaced:
        for _ in range(TRIES):
            with _room_below(num_bytes):
                memory = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, protection)
            if num_bytes < HUGE_BYTES or _address(memory) % HUGE_BYTES == 0:
                return memory
            # It fills a gap that was larger than the file and smaller than the room; the next one falls beyond it.
            misplaced.callback(memory.close)
        return mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, protection)


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


@contextlib.contextmanager
def _room_below(num_bytes: int) -> Iterator[None]:
    """Arrange that the next mapping of that size comes to lie at a multiple of a huge page.

    Addresses are given out from one end, of the first gap that is large enough; downwards on most machines, upwards
    where the stack is unlimited. So such a gap is taken, a huge page larger than needed, and of it the very place is
    given back. It fails where a gap before it fits the mapping and not the room, where another thread maps at the same
    moment, or where the kernel goes about it otherwise.
    """
    if num_bytes < HUGE_BYTES:
        yield
        return
    libc = _libc()
    size = _rounded(num_bytes, mmap.PAGESIZE)
    start = libc.mmap(None, size + HUGE_BYTES, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start == _FAILED:
        yield
        return
    place = _rounded(start, HUGE_BYTES)
    libc.munmap(place, size)
    try:
        yield
    finally:
        for first, end in ((start, place), (place + size, start + size + HUGE_BYTES)):
            if first < end:
                libc.munmap(first, end - first)


def _address(memory: mmap.mmap) -> int:
    with BufferAddress(memory) as address:
        return address


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@functools.cache
def _libc() -> ctypes.CDLL:
    """The C library's own calls: the mmap module maps no address and unmaps no part."""
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
