"""How a client proves routers, and itself: TLS and an API key. Knows files and bytes, no channel that is open."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc

_ENCRYPTED = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of a client, in PEM. Without root certificates those that gRPC ships hold.

    `certificate` (with its chain) and `key` are the client's own, where routers ask for one; both or neither.
    `server_name` is the name in the router's certificate where it is not that of its address.
    """

    root_certificates: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client certificate and its key are given together")
        if self.key is not None and any(mark in self.key for mark in _ENCRYPTED):
            raise ValueError("the client's key is protected by a passphrase: store it without one")

    @classmethod
    def of_files(
        cls,
        root_certificates: str | Path | None = None,
        *,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        server_name: str = "",
    ) -> Self:
        """Read PEM files. Raises OSError where one cannot be read, ValueError on a certificate without its key."""
        return cls(
            root_certificates=_read(root_certificates),
            certificate=_read(certificate),
            key=_read(key),
            server_name=server_name,
        )

    def credentials(self) -> grpc.ChannelCredentials:
        """Return gRPC's form."""
        return grpc.ssl_channel_credentials(self.root_certificates, self.key, self.certificate)


def call_metadata(api_key: str) -> tuple[tuple[str, str], ...]:
    """Return what each call carries for an API key, nothing for "". Raises ValueError on what no header can hold."""
    if not api_key:
        return ()
    if not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise ValueError("an API key is printable ASCII without spaces")
    return (("authorization", f"Bearer {api_key}"),)


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
