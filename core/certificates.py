"""PEM files of certificates as a client needs them: whose it believes, and the one that it shows.

Knows files and OpenSSL's contexts, nothing of who is met. Invariant: what is returned was tried, so that a file that is
no certificate, or another's key, is an error here and not at the first handshake.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

File = str | Path | None
"""Where a PEM file is; nowhere where this is empty."""


def show(context: ssl.SSLContext, cert: str | Path, key: str | Path) -> None:
    """Have `context` show the certificate in these files.

    Raises ValueError on a key that a passphrase protects, OSError where a file cannot be read or is none of its kind.
    """

    def passphrase() -> str:
        # Without this OpenSSL asks whoever sits at the terminal, and a service waits for ever.
        raise ValueError(f"{key} is protected by a passphrase, which nobody is asked for: store it without one")

    context.load_cert_chain(cert, key, password=passphrase)


def client_context(ca: File, cert: File = None, key: File = None) -> ssl.SSLContext:
    """Return how a client that is not gRPC's meets a server: whom it believes, the system's authorities where `ca` is
    empty, and what it shows, nothing where `cert` is. Raises ValueError, naming the files, where one cannot be used.
    """
    with _named(ca, cert, key):
        context = ssl.create_default_context(cafile=ca or None)
        if cert and key:
            show(context, cert, key)
        return context


def client_pem(ca: File, cert: File = None, key: File = None) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the same for a client that is gRPC's: authorities, key and certificate, in the order of its arguments.

    None stands for each that is empty; gRPC believes authorities of its own without `ca`. Raises as `client_context`.
    """
    with _named(ca, cert, key):
        # gRPC takes any bytes, and tells what is wrong with them at the first handshake alone.
        tried = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca:
            tried.load_verify_locations(ca)
        if cert and key:
            show(tried, cert, key)
        root, own, chain = (Path(each).read_bytes() if each else None for each in (ca, key, cert))
        return root, own, chain


@contextmanager
def _named(*files: File) -> Iterator[None]:
    """Turn an OSError, where OpenSSL names no file, into a ValueError that does."""
    try:
        yield
    except OSError as error:
        names = ", ".join(str(each) for each in files if each)
        raise ValueError(f"{names} cannot be used: {error.strerror or error}") from error
