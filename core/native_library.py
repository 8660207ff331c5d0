"""A C or C++ source of ours as a library: built once, by this machine's compiler for its processor, kept, loaded.

Knows no source. Nobody needs a compiler: without one `load` says so once, and the caller has another way. Invariants:
what is kept under a name was loaded once, and belongs to exactly this source and the headers beside it, these flags
and this processor; nobody else could have put it there; what is loaded is whole, because one that is cut short ends the
process that loads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

FLAGS: tuple[str, ...] = ("-O3", "-march=native", "-shared", "-fPIC")
# OpenMP's library is the one that the process has already, where it has one of that name: torch's.
LANGUAGES = {".c": ("cc", "-std=gnu11"), ".cpp": ("c++", "-std=gnu++17", "-fopenmp")}
BUILD_S = 300.0  # some fifteen seconds on an idle machine
SEAL_BYTES = 16  # behind a library, which no loader looks at: a digest of it


@functools.cache
def load(source: Path, *more_flags: str) -> ctypes.CDLL | None:
    """Return the library of a source, built where it is not kept yet: seconds. None where that is not possible here."""
    try:
        return _load(source, more_flags)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else ""
        log.warning("%s is done in Python: %s %s", source.stem, error, said)
        return None


def build_of(library: ctypes.CDLL) -> str:
    """Return 16 hex digits over the code as it was built: where they are equal, two libraries compute alike."""
    return hashlib.blake2b(Path(library._name).read_bytes(), digest_size=8).hexdigest()


@functools.cache
def vendor() -> str:
    """Return who made this machine's processor, as it says so itself (`GenuineIntel`); empty where it does not."""
    return next((line.split()[-1] for line in _cpuinfo() if line.startswith("vendor_id")), "")


def features() -> frozenset[str]:
    """Return what this machine's processor says that it can do, by the kernel's names: `amx_bf16`."""
    return frozenset(_processor().partition(":")[2].split())


def _load(source: Path, more_flags: tuple[str, ...]) -> ctypes.CDLL:
    compiler, *dialect = LANGUAGES[source.suffix]
    flags = (*FLAGS, *dialect, *more_flags)
    text = b"".join(part.read_bytes() for part in (source, *sorted(source.parent.glob("*.h"))))
    name = hashlib.blake2b(text + repr((flags, _processor())).encode(), digest_size=16).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pagewire" / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_ours(folder)
    library = folder / f"{source.stem}-{name}.so"
    if kept := _kept(library):
        return kept
    with _alone(folder):  # pods that start together would slow each other down, building the same
        return _kept(library) or _built(source, library, compiler, flags)


def _check_ours(folder: Path) -> None:
    """Raise OSError where somebody else may put a file there: it would run as code of ours."""
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} is another user's, or others may write to it: nothing is loaded from there")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from building here meanwhile; they wait."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _kept(library: Path) -> ctypes.CDLL | None:
    """Return what was built before, None where there is nothing of use."""
    if not library.exists():
        return None
    try:
        found = library.read_bytes()
        if found[-SEAL_BYTES:] != _seal(found[:-SEAL_BYTES]):
            raise OSError("the file is not whole")
        return ctypes.CDLL(str(library))
    except OSError as error:
        log.warning("%s is built anew: %s", library.stem, error)
        return None


def _built(source: Path, library: Path, compiler: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    program = shutil.which(compiler)
    if program is None:
        raise FileNotFoundError(f"there is no {compiler} on PATH")
    with tempfile.TemporaryDirectory(dir=library.parent) as own:
        fresh = Path(own) / library.name
        subprocess.run(
            [program, *flags, "-o", str(fresh), str(source)], check=True, capture_output=True, timeout=BUILD_S
        )
        ctypes.CDLL(str(fresh))  # nobody else shall find what does not load
        with fresh.open("r+b") as file:
            file.write(_seal(file.read()))
            file.flush()
            os.fsync(file.fileno())  # a machine that goes down shall not leave the name without the bytes
        fresh.replace(library)
    return ctypes.CDLL(str(library))  # by the name that it keeps


def _seal(built: bytes) -> bytes:
    return hashlib.blake2b(built, digest_size=SEAL_BYTES).digest()


def _processor() -> str:
    """Return what `-march=native` depends on: a home folder may be shared by different machines."""
    found = (line for line in _cpuinfo() if line.startswith(("flags", "Features")))
    return next(found, "") or platform.processor() or platform.machine()


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
