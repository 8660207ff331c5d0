"""Keeps the C heap of a process that moves messages of megabytes: what a message gave back serves the next one.

By default glibc returns large pieces to the kernel as soon as they are free, and every message then pays for hundreds
of page faults, which cost more CPU than its copy and its checksum together. What is kept is bounded by what was in
flight at a time. Knows nothing of messages. Elsewhere than on glibc it does nothing.
"""

from __future__ import annotations

import ctypes
import functools

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
TRIM_BYTES = 256 << 20
MMAP_BYTES = 32 << 20  # glibc takes no more


@functools.cache
def keep_heap() -> bool:
    """Let this process keep what it frees, once and for all; False where that cannot be said."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES))
