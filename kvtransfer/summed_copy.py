"""Copies a block and computes its checksum: in one pass where a compiler was at hand, in two where not.

Either way the checksum is xxh3_64 of what was written, so both ends need not be alike.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import xxhash

from pagewire.core import native_library
from pagewire.core.buffer_address import BufferAddress

STRIPE_BYTES = 64
MIN_BYTES = 256  # below, xxh3 is another function

Native = Callable[[int, int, int, int], int]


def summed_copy(target: memoryview, source: bytes | bytearray | memoryview, seed: int) -> int:
    """Copy `source` over `target`, both of bytes and as long; return xxh3_64 of it, seeded. Raises ValueError."""
    size = memoryview(source).nbytes
    if target.nbytes != size:
        raise ValueError(f"{size} bytes for a place of {target.nbytes}")
    with BufferAddress(target, writable=True) as to, BufferAddress(source) as start:
        return summed_copy_at(to, start, size, seed)


def summed_copy_at(target: int, source: int, size: int, seed: int) -> int:
    """The same between addresses of this process, which the caller answers for: nothing is looked up for each block."""
    native = _native()
    if native is None or size < MIN_BYTES or size % STRIPE_BYTES:
        ctypes.memmove(target, source, size)
        return xxhash.xxh3_64_intdigest((ctypes.c_char * size).from_address(target), seed)
    return native(target, source, size, seed)


def prepare() -> bool:
    """Build and load the native pass now, which may take a second; False where there is none and two passes do."""
    return _native() is not None


@functools.cache
def _native() -> Native | None:
    library = native_library.load(Path(__file__).with_suffix(".c"))
    if library is None:
        return None
    function = library.summed_copy
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64)
    function.restype = ctypes.c_uint64
    return function
