"""A C source of ours as a library: built once with this machine's compiler for this machine's processor, kept, loaded.

Knows no source. Nobody needs a compiler: without one `load` says so once, and the caller has another way. Invariant: a
library in the cache is whole, and belongs to exactly this source, these flags and this processor.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
BUILD_S = 120.0


@functools.cache
def load(source: Path) -> ctypes.CDLL | None:
    """Return the library of a C source; None where it cannot be built here, or `PAGEWIRE_NATIVE` is 0."""
    if os.environ.get("PAGEWIRE_NATIVE", "1") == "0":
        return None
    compiler = shutil.which("cc")
    if compiler is None:
        log.info("no C compiler: %s is done in Python", source.stem)
        return None
    try:
        return ctypes.CDLL(str(_built(source, compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else ""
        log.warning("%s is done in Python: %s %s", source.stem, error, said)
        return None


def _built(source: Path, compiler: str) -> Path:
    text = source.read_bytes()
    name = hashlib.blake2b(text + repr((FLAGS, compiler, _processor())).encode(), digest_size=16).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pagewire" / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    library = folder / f"{source.stem}-{name}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:
            fresh = Path(own) / library.name
            subprocess.run(
                [compiler, *FLAGS, "-o", str(fresh), str(source)], check=True, capture_output=True, timeout=BUILD_S
            )
            fresh.replace(library)  # whoever builds it at the same time has built the same
    return library


def _processor() -> str:
    """Return what `-march=native` depends on: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
