"""PEM files of certificates: whose a process believes, and the one that it shows.

Knows files and OpenSSL's contexts, nothing of who is met. Invariant: what is returned was tried, so that a file that is
no certificate, or another's key, is an error that names it here, and not one of the first handshake.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which the module ssl has no name for

File = str | Path | None
"""Where a PEM file is; there is none where this is empty."""


class Pem(NamedTuple):
    """What is in files, in the order in which `grpc.ssl_channel_credentials` takes it; None for what there is not."""

    root_certificates: bytes | None
    private_key: bytes | None
    certificate_chain: bytes | None


def show(context: ssl.SSLContext, cert: str | Path, key: str | Path) -> None:
    """Have `context` show the certificate in these files.

    Raises ValueError, naming them, where one cannot be read, the key is another's, or a passphrase protects it.
    """

    def passphrase() -> str:
        # Without this OpenSSL asks whoever sits at the terminal, and a service waits for ever.
        raise ValueError(f"{key} is protected by a passphrase, which nobody is asked for: store it without one")

    for path in (cert, key):
        _read(path)
    with _named(f"{cert} and {key} are no certificate with its key"):
        context.load_cert_chain(cert, key, password=passphrase)


def over_at(cert: str | Path, key: str | Path) -> float:
    """Return when the certificate in these files is over, in seconds of Unix time; raises ValueError as `show`.

    The standard library reads a certificate for those alone that it is shown to, so we meet ourselves: as a server, and
    where it is for clients alone, as one.
    """
    try:
        told = _met(cert, key, is_client=False)
    except ssl.SSLError:
        with _named(f"{cert} cannot be read"):
            told = _met(cert, key, is_client=True)
    return ssl.cert_time_to_seconds(told)


def _met(cert: str | Path, key: str | Path, *, is_client: bool) -> str:
    """Return the end of a certificate that a client or a server shows; raises ssl.SSLError where it is not for that."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    show(server, cert, key)
    show(client, cert, key)
    looking = server if is_client else client
    looking.load_verify_locations(cert)
    looking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    looking.verify_mode = ssl.CERT_REQUIRED
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    is_over = [False, False]
    while not all(is_over):  # each turn moves bytes, or raises
        for number, end in enumerate(ends):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                is_over[number] = True
    told = ends[is_client].getpeercert()
    assert told is not None, "it was asked for"
    return str(told["notAfter"])


def believe(context: ssl.SSLContext, ca: str | Path) -> None:
    """Have `context` believe what authorities in this file have signed; raises ValueError, naming it, as `show`."""
    _read(ca)
    with _named(f"{ca} holds no certificate of an authority"):
        context.load_verify_locations(ca)


def client_context(ca: File, cert: File = None, key: File = None) -> ssl.SSLContext:
    """Return how a client that is not gRPC's meets a server.

    It believes the system's authorities where `ca` is empty, and shows nothing where `cert` and `key` are. Raises
    ValueError, naming the file, where one cannot be used, or on one of these two without the other.
    """
    _check(ca, cert, key)
    context = ssl.create_default_context(cafile=ca or None)
    if cert and key:
        show(context, cert, key)
    return context


def client_pem(ca: File, cert: File = None, key: File = None) -> Pem:
    """Return the same for a client that is gRPC's, which believes authorities of its own where `ca` is empty."""
    _check(ca, cert, key)  # gRPC takes any bytes, and tells what is wrong with them at the first handshake alone
    return Pem(*(_read(each) if each else None for each in (ca, key, cert)))


def _check(ca: File, cert: File, key: File) -> None:
    if bool(cert) != bool(key):
        raise ValueError("a certificate and its key are given together")
    tried = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca:
        believe(tried, ca)
    if cert and key:
        show(tried, cert, key)


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise ValueError(f"{what}: {error.reason or error}") from error
