"""The TLS of a server that is not gRPC's: every handshake is by the files as they are then.

Knows certificates, no HTTP. Files are looked at for each connection and read when they changed, so a certificate, and
the authority whose certificates callers have to show, are renewed in place. Invariants: what cannot be used changes
nothing, the one from before stays; no session outlives the handshake that proved its caller.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from pagewire.serving.tls import Tls

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


class RenewedContext:
    """`context` is what the server listens with. Raises ValueError, naming the file, where one cannot be used."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._files = [path for path in (tls.cert, tls.key, tls.ca) if path is not None]
        self._seen = _stamp(self._files)
        self.context = self._now = tls.context()
        self.context.sni_callback = self._renew  # which is called for callers that name no server, too

    def _renew(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        stamp = _stamp(self._files)
        if stamp != self._seen:
            try:
                self._now = self._tls.context()
            except (ValueError, OSError) as error:
                log.error("the certificate from before stays: %s", error)
            self._seen = stamp
        connection.context = self._now


def _stamp(files: list[Path]) -> Stamp:
    """Return what changes whenever a file does; a missing one is one that changed."""
    return tuple(_mark(path) for path in files)


def _mark(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
