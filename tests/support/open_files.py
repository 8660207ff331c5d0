"""What this process has open, to be held against what it had before: other tests' files may be closed meanwhile."""

from __future__ import annotations

import contextlib
import os


def open_files() -> set[tuple[str, str]]:
    """Return each descriptor with what it leads to; one that was closed and taken again leads elsewhere."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found
