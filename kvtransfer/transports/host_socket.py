"""Where processes of one host meet: addresses of Unix sockets.

They are abstract, which processes in one network namespace find, or files of a directory that all have, as containers
with a common volume do. Whoever meets does so within seconds: an older file is one that a killed process has left, or
is needed no more. Knows nothing of what is said.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

ABANDONED_S = 60.0
_PREFIX = "pagewire-"


def address_of(directory: str, name: bytes) -> bytes:
    """Return the address for a random name: a file of `directory`, or abstract where that is empty."""
    told = f"{_PREFIX}{name.hex()}"
    return os.fsencode(Path(directory) / told) if directory else b"\0" + told.encode()


def remove_abandoned(directory: str) -> None:
    """Unlink old sockets in `directory`; does nothing where that is empty."""
    for path in Path(directory).glob(f"{_PREFIX}*") if directory else ():
        with contextlib.suppress(OSError):  # others look after it too
            if path.is_socket() and time.time() - path.stat().st_mtime > ABANDONED_S:
                path.unlink()


def host_token(shm_dir: str = "") -> str:
    """Return what two pods have in common exactly when one can connect to the other's sockets; empty: nobody can."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        place = Path(shm_dir).stat() if shm_dir else Path("/proc/self/ns/net").stat()
    except OSError:
        return ""
    return f"{boot}.{place.st_dev:x}.{place.st_ino:x}"
