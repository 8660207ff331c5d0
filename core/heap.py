"""Keeps the C heap of a process that frees megabytes again and again: what was given back serves the next asking.

By default glibc returns large pieces to the kernel as soon as they are free, and every message or step then pays for
hundreds of page faults, which cost more CPU than a message's copy and its checksum together; it learns better by
itself, but only in part. What is kept is bounded by what was in use at a time. Knows nothing of what lies in it.
Elsewhere than on glibc it does nothing.
"""

from __future__ import annotations

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
TRIM_BYTES = 256 << 20  # free at the heap's end before any of it goes back: a window of messages, several steps
MMAP_BYTES = 32 << 20  # the most that there is: larger pieces are mapped each for itself


@functools.cache
def keep_heap() -> bool:
    """Let this process keep what it frees, once and for all; False where that cannot be said."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, MMAP_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, TRIM_BYTES))


def give_back() -> bool:
    """Give back what is free now: what a start took is no measure of what comes; False where that cannot be done."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    return bool(trim(0))
