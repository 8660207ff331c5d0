"""When the certificates that a process shows are over: for /metrics, and for its log once that is soon.

Reads a file again when it has changed, as those do that show it. Invariant: what cannot be read is not shown, and keeps
nobody from anything.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pagewire.core.certificates import over_at
from pagewire.core.renewed import Renewed
from pagewire.serving.sample import Sample

log = logging.getLogger(__name__)

SOON_S = 7 * 86_400.0
DAY_S = 86_400.0


class CertificateExpiry:
    """Of certificates with their keys, PEM files; the same one twice counts once, and empty paths are none."""

    def __init__(self, pairs: Iterable[tuple[str, str]], now_s: Callable[[], float] = time.time) -> None:
        self._over_at: dict[str, Renewed[float]] = {}
        for cert, key in dict(pairs).items():
            if not cert:
                continue
            try:
                self._over_at[cert] = Renewed(functools.partial(_read, cert, key, now_s), (Path(cert), Path(key)))
            except ValueError as error:
                log.warning("when %s is over is not known: %s", cert, error)

    def samples(self) -> Iterator[Sample]:
        """Yield when each is over, in seconds of Unix time."""
        text = "When a certificate that this process shows is over, in seconds of Unix time"
        for cert, over in self._over_at.items():
            yield Sample("certificate_expiration_timestamp_seconds", {"file": cert}, over.now(), text)


def _read(cert: str, key: str, now_s: Callable[[], float]) -> float:
    value = over_at(cert, key)
    left_s = value - now_s()
    if left_s < SOON_S:
        told = "is over in" if left_s > 0 else "has been over for"
        log.warning("certificate %s %s %.1f days: write a new one in its place", cert, told, abs(left_s) / DAY_S)
    return value
