"""Files for parsers that read files: a folder of each process, in one that is gone with the process that has forked."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def scratch() -> Path:
    """Return this process' folder; what a fork of it writes is the fork's own."""
    return _scratch(os.getpid())


def reading(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], None]:
    """Return what reads bytes as a file of that name."""

    def parse(data: bytes) -> None:
        path = scratch() / name
        path.write_bytes(data)
        read(path)

    return parse


@functools.cache
def _scratch(pid: int) -> Path:
    folder = _ROOT / str(pid)
    folder.mkdir(exist_ok=True)
    return folder


# Of the process that imports this: its forks end without a word, and nothing of theirs would be taken away.
_ROOT = Path(tempfile.mkdtemp(prefix="pagewire-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
atexit.register(shutil.rmtree, _ROOT, ignore_errors=True)
