"""The CPU backend as built for this processor, as for one with tiles (AMX), which are emulated where need be, and as
for those that have less: AVX-512 without products of bfloat16 and of bytes, where there is AVX-512 at all; AVX2; and
any x86-64, without AVX, by the code that all other processors run too. As for one whose products of bfloat16 are fast,
where they are not.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

from pagewire.core import native_library
from pagewire.kernels import native_ops
from pagewire.kernels.cpu_backend import CpuBackend

IS_X86 = platform.machine() == "x86_64"
AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
HAS = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split()) if IS_X86 else set()
HAS_SLOW_PRODUCTS = "avx512_bf16" in HAS and native_library.vendor() in native_ops.FLAGS
BUILDS = ("own", "tiled") if HAS >= AVX512 else ("own",)
# Builds for processors that have less than this one, or something faster.
OTHER: dict[str, tuple[str, ...]] = {"avx512": ("-march=skylake-avx512",)} if HAS >= AVX512 else {}
OTHER |= {"avx2": ("-march=haswell",), "portable": ("-march=x86-64",)} if IS_X86 else {}
OTHER |= {"fast_bf16": ("-USLOW_BF16_PRODUCTS",)} if HAS_SLOW_PRODUCTS else {}
ALL_BUILDS = (*BUILDS, *OTHER)
CODED_BUILDS = (*ALL_BUILDS, "avx_vnni") if "avx_vnni" in HAS else ALL_BUILDS  # others differ in codes' products alone
# Not one of ALL_BUILDS.
OTHER |= {"avx_vnni": ("-march=haswell", "-mavxvnni")}


def native_backend(build: str) -> CpuBackend:
    """Return the backend of one of `ALL_BUILDS`."""
    if build == "tiled":
        return _tiled()
    if build in OTHER:
        return _for_another(*OTHER[build])
    native = CpuBackend.load()
    assert native is not None
    return native


@functools.cache
def _for_another(*flags: str) -> CpuBackend:
    # Of two flags the last one counts. What -O3 adds is half a minute of compiling, and no other code of ours.
    library = native_ops.load(*flags, "-O1")
    assert library is not None
    library.use_tiles()
    return CpuBackend(library)


@functools.cache
def _tiled() -> CpuBackend:
    library = native_ops.load("-mamx-tile", "-mamx-bf16")
    assert library is not None
    is_on = ctypes.c_bool.in_dll(library, "tiles_are_on")
    library.use_tiles()
    if not is_on.value:
        emulator = native_library.load(Path(__file__).with_name("tile_emulator.c"))
        assert emulator is not None
        emulator.install()
        is_on.value = True
    return CpuBackend(library)
