"""The native ops of a CPU as a library, apart from what calls them: to build it takes no torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

from pagewire.core import native_library

SOURCE = Path(__file__).parent / "native" / "cpu_ops.cpp"
# An AVX512-BF16 product of Intel's takes as long as four of fp32, for two times as many numbers.
FLAGS = {"GenuineIntel": ("-DSLOW_BF16_PRODUCTS",)}


def load(*more_flags: str) -> ctypes.CDLL | None:
    """Build and load it; None where that is not possible here."""
    return native_library.load(SOURCE, *FLAGS.get(native_library.vendor(), ()), *more_flags)
