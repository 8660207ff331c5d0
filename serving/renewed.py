"""What is made of certificates' files, by those files as they are now.

Files are looked at for each use and read when they changed, so a certificate, and the authority whose certificates are
believed, are renewed in place. Knows neither HTTP nor Redis. Invariants: what cannot be used changes nothing, the one
from before stays; no session outlives the handshake that proved its caller.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from pagewire.serving.tls import Tls

log = logging.getLogger(__name__)

Made = TypeVar("Made")
Stamp = tuple[tuple[int, int, int], ...]


class Renewed(Generic[Made]):
    """What `make` makes of `files`, and makes anew when one of them has changed.

    Raises what `make` does where they cannot be used from the start.
    """

    def __init__(self, make: Callable[[], Made], files: Iterable[Path]) -> None:
        self._make = make
        self._files = tuple(files)
        self._seen = _stamp(self._files)
        self._made = make()

    def now(self) -> Made:
        """Return what the next handshake goes by: the same object until a file changes."""
        stamp = _stamp(self._files)
        if stamp != self._seen:
            try:
                self._made = self._make()
            except (ValueError, OSError) as error:
                log.error("the certificate from before stays: %s", error)
            self._seen = stamp
        return self._made


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return what a server listens with. Raises ValueError, naming the file, where one cannot be used."""
    renewed = Renewed(tls.context, [path for path in (tls.cert, tls.key, tls.ca) if path is not None])

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = renewed.now()

    # The one that is listened with is looked at for its callback alone, whoever takes its place.
    context = renewed.now()
    context.sni_callback = renew  # which is called for callers that name no server, too
    return context


def _stamp(files: Iterable[Path]) -> Stamp:
    """Return what changes whenever a file does; a missing one is one that changed."""
    return tuple(_mark(path) for path in files)


def _mark(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
