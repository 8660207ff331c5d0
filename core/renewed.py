"""What is made of files, by those files as they are now: certificates, for all who show or believe them.

Files are looked at for each use and read when they changed, so what is in them is renewed in place, without a signal.
Knows nothing of what is made. Invariant: what cannot be used changes nothing, the one from before stays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

RETRY_S = 1.0  # to read a bundle of authorities takes 20 ms, and a pair that is half renewed may stay so

Made = TypeVar("Made")
Stamp = tuple[tuple[int, ...], ...]


class Renewed(Generic[Made]):
    """What `make` makes of `files`, and makes anew when one of them has changed; for any thread.

    Raises what `make` does where they cannot be used from the start. Later that is logged, a ValueError or an OSError,
    and they are tried again once `RETRY_S` is over or a file has changed.
    """

    def __init__(
        self, make: Callable[[], Made], files: Iterable[Path], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._now_s = now_s
        self._files = tuple(files)
        self._lock = threading.Lock()
        self._seen = self._failed = _stamp(self._files)
        self._failed_s = 0.0
        self._made = make()

    def now(self) -> Made:
        """Return what the next handshake goes by: the same object until a file changes."""
        with self._lock:
            stamp = _stamp(self._files)
            if stamp != self._seen:
                self._renew(stamp)
            return self._made

    def last(self) -> Made:
        """Return what was used last, whatever is in the files by now."""
        return self._made

    def _renew(self, stamp: Stamp) -> None:
        if stamp == self._failed and self._now_s() < self._failed_s + RETRY_S:
            return
        try:
            made = self._make()
        except (ValueError, OSError) as error:
            if stamp != self._failed:  # it is tried again and again, and told once
                log.error("what was in %s before stays: %s", ", ".join(map(str, self._files)), error)
            self._failed, self._failed_s = stamp, self._now_s()
            return
        if _stamp(self._files) == stamp:  # else one was replaced meanwhile, and whoever is next looks again
            self._made, self._seen = made, stamp


def _stamp(files: Iterable[Path]) -> Stamp:
    """Return what changes whenever a file does; a missing one is one that changed."""
    return tuple(_mark(path) for path in files)


def _mark(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
