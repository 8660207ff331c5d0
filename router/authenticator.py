"""Who a caller is: the one check behind both doors, and the key file that it keeps reading.

Knows the Authorization header's value, nothing of HTTP or gRPC. Without a key file everybody is anonymous, but for who
shows the operator's key; with one, nobody is, also while it names no key at all. Invariant: a file that cannot be read
leaves the keys that were read last.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from pathlib import Path

from pagewire.core.errors import Unauthenticated
from pagewire.router.keys import KeyRing, read
from pagewire.router.tenants import ANONYMOUS, OPERATOR, Tenant

log = logging.getLogger(__name__)

LOOK_S = 1.0  # how often the file is looked at
SCHEME = "bearer"


class Authenticator:
    """Turns `Authorization` into a tenant; `operator_key` is an operator's, nobody's when empty.

    Raises OSError or ValueError when the file cannot be read at the start, ValueError for a key that nobody could show.
    """

    def __init__(self, file: Path | None, *, secret: bytes, operator_key: str = "") -> None:
        self._file = file
        self._secret = secret
        if not operator_key.isascii() or operator_key != operator_key.strip():
            raise ValueError("operator_key must be of ASCII without blanks around it: no header could show it")
        self._operator_key = operator_key.encode()
        self._ring: KeyRing | None = None
        self._stamp: object = None
        if file is not None:
            self._read(file)

    def tenant(self, authorization: str | None) -> Tenant:
        """Return whose key the header holds; raises Unauthenticated, which never tells what was wrong with a key."""
        scheme, _, key = (authorization or "").partition(" ")
        if self._operator_key and scheme.lower() == SCHEME:
            given = key.strip().encode(errors="surrogatepass")
            if hmac.compare_digest(given, self._operator_key):
                return OPERATOR
        if self._ring is None:
            return ANONYMOUS
        if scheme.lower() != SCHEME or not key:
            raise Unauthenticated("an API key is needed: Authorization: Bearer KEY")
        tenant = self._ring.tenant(key.strip())
        if tenant is None:
            raise Unauthenticated("this API key is not known here")
        return tenant

    def reload(self) -> None:
        """Read the file again; what is admitted goes on as it is."""
        if self._file is None:
            return
        try:
            self._read(self._file)
        except (OSError, ValueError) as error:
            log.error("%s is not read, the keys from before stay: %s", self._file, error)

    async def run(self) -> None:
        """Look for changes of the file until cancelled."""
        while self._file is not None:
            await asyncio.sleep(LOOK_S)
            if _stamp(self._file) != self._stamp:
                self.reload()

    def _read(self, file: Path) -> None:
        self._stamp = _stamp(file)  # before it is read: a change in between is seen the next time
        self._ring = read(file.read_text(encoding="utf-8"), secret=self._secret)
        log.info("%d API keys in %s", len(self._ring), file)


def _stamp(file: Path) -> object:
    try:
        found = file.stat()
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns
