"""When the certificates that a process shows are over: for /metrics, and for its log once that is soon.

Reads a file again when it has changed, as those do that show it. The log is told when it is asked for, once a day.
Invariant: what cannot be read keeps nobody from anything.
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
    """Of certificates with their keys, PEM files; the same one twice counts once, and empty paths are none.

    What stands first in a file is meant: intermediates behind it are not looked at.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._told_s: dict[tuple[str, float], float] = {}
        self._over_at: dict[str, Renewed[float]] = {}
        for cert, key in dict(pairs).items():
            if not cert:
                continue
            try:
                self._over_at[cert] = Renewed(functools.partial(over_at, cert, key), (Path(cert), Path(key)))
            except (ValueError, OSError) as error:
                log.warning("when %s is over is not known: %s", cert, error)

    def samples(self) -> Iterator[Sample]:
        """Yield when each is over, in seconds of Unix time."""
        text = "When a certificate that this process shows is over, in seconds of Unix time"
        for cert, over in self._over_at.items():
            value = over.now()
            self._tell(cert, value)
            yield Sample("certificate_expiration_timestamp_seconds", {"file": cert}, value, text)

    def _tell(self, cert: str, value: float) -> None:
        now_s = self._now_s()
        if value - now_s >= SOON_S or now_s < self._told_s.get((cert, value), -DAY_S) + DAY_S:
            return
        self._told_s[cert, value] = now_s
        how = "is over in" if value > now_s else "has been over for"
        log.warning("certificate %s %s %.1f days: write a new one in its place", cert, how, abs(value - now_s) / DAY_S)
