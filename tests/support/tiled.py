"""The CPU backend as built for this processor, and as for one with tiles (AMX), which are emulated where need be."""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

from pagewire.core import native_library
from pagewire.kernels import cpu_backend
from pagewire.kernels.cpu_backend import CpuBackend

SOURCE = Path(cpu_backend.__file__).parent / "native" / "cpu_ops.cpp"
BUILDS = ("own", "tiled") if platform.machine() == "x86_64" else ("own",)


def native_backend(build: str) -> CpuBackend:
    """Return the backend of one of `BUILDS`."""
    if build == "tiled":
        return _tiled()
    native = CpuBackend.load()
    assert native is not None
    return native


@functools.cache
def _tiled() -> CpuBackend:
    library = native_library.load(SOURCE, "-mamx-tile", "-mamx-bf16")
    assert library is not None
    is_on = ctypes.c_bool.in_dll(library, "tiles_are_on")
    library.use_tiles()
    if not is_on.value:
        emulator = native_library.load(Path(__file__).with_name("tile_emulator.c"))
        assert emulator is not None
        emulator.install()
        is_on.value = True
    return CpuBackend(library)
