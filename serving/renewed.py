"""What is made of files, by those files as they are now: certificates, for all who show or believe them.

Files are looked at for each use and read when they changed, so what is in them is renewed in place, without a signal.
Knows nothing of what is made. Invariant: what cannot be used changes nothing, the one from before stays.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Made = TypeVar("Made")
Stamp = tuple[tuple[int, int, int], ...]


class Renewed(Generic[Made]):
    """What `make` makes of `files`, and makes anew when one of them has changed; for any thread.

    Raises what `make` does where they cannot be used from the start; later that is logged, a ValueError or an OSError.
    """

    def __init__(self, make: Callable[[], Made], files: Iterable[Path]) -> None:
        self._make = make
        self._files = tuple(files)
        self._lock = threading.Lock()
        self._seen = _stamp(self._files)
        self._made = make()

    def now(self) -> Made:
        """Return what the next handshake goes by: the same object until a file changes."""
        with self._lock:
            stamp = _stamp(self._files)
            if stamp != self._seen:
                try:
                    self._made = self._make()
                except (ValueError, OSError) as error:
                    log.error("what was in %s before stays: %s", ", ".join(map(str, self._files)), error)
                self._seen = stamp
            return self._made


def _stamp(files: Iterable[Path]) -> Stamp:
    """Return what changes whenever a file does; a missing one is one that changed."""
    return tuple(_mark(path) for path in files)


def _mark(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
