"""The certificates of a local cluster: found in a folder, or made there, and what each process is told of them.

Knows files and flags, nothing of who starts a process. Invariant: what is there already is used, never written over.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from pagewire.core.certificates import client_context, over_at
from pagewire.core.errors import Unavailable

ROUTER, POD, CLIENT = "router", "pod", "client"


class ClusterTls:
    """A folder as `pagewire certs` writes it; what is missing of it is made, for whoever is met at `host` too.

    Raises Unavailable where the folder holds a part of it alone or what is over, ValueError where a pair is none.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._folder = folder
        needed = [self._ca, *(path for name in (ROUTER, POD, CLIENT) for path in self._pair(name))]
        missing = [path.name for path in needed if not path.exists()]
        if 0 < len(missing) < len(needed):
            raise Unavailable(f"{folder} holds a part of a set of certificates: it lacks {', '.join(missing)}")
        if missing:
            from pagewire.cli import certs  # which alone needs `cryptography`

            certs.make(folder, hosts=tuple(dict.fromkeys((*certs.HOSTS, host))))
        # Nobody would meet anybody with them, which each process takes for something that may pass.
        over = [cert for cert, key in map(self._pair, (ROUTER, POD, CLIENT)) if over_at(cert, key) <= time.time()]
        if over:
            raise Unavailable(f"{', '.join(map(str, over))} expired: renew the certificates, or name another folder")

    def flags(self, name: str) -> list[str]:
        """Return the flags of a process that shows the certificate `name`."""
        certificate, key = self._pair(name)
        return ["--tls-cert", str(certificate), "--tls-key", str(key), "--tls-ca", str(self._ca)]

    def context(self) -> ssl.SSLContext:
        """Return how to ask the router over HTTPS."""
        return client_context(self._ca)

    def told(self) -> dict[str, str]:
        """Return what a client has to know: whom to believe, and a certificate where it is asked for one."""
        certificate, key = self._pair(CLIENT)
        return {"ca": str(self._ca), "cert": str(certificate), "key": str(key)}

    @property
    def _ca(self) -> Path:
        return self._folder / "ca.pem"

    def _pair(self, name: str) -> tuple[Path, Path]:
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"
