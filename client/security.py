"""How a client proves routers, and itself: TLS and an API key. Knows files and bytes, no channel that is open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from pagewire.core.certificates import File, client_pem


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of a client, in PEM files. Without `ca` the authorities that gRPC ships are believed.

    `cert` (with its chain) and `key` are the client's own, where routers ask for one; both or neither. `server_name` is
    the name in the router's certificate where it is not that of its address.
    """

    ca: File = None
    cert: File = None
    key: File = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ValueError("a client certificate and its key are given together")

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return tuple(Path(each) for each in (self.ca, self.cert, self.key) if each)

    def credentials(self) -> grpc.ChannelCredentials:
        """Return gRPC's form of the files as they are.

        Raises ValueError, naming them, where one cannot be used, as a key that a passphrase protects.
        """
        return grpc.ssl_channel_credentials(*client_pem(self.ca, self.cert, self.key))


def call_metadata(api_key: str) -> tuple[tuple[str, str], ...]:
    """Return what each call carries for an API key, nothing for "".

    Raises ValueError on what no header can hold, without the key: a library that refuses the header would quote it.
    """
    if not api_key:
        return ()
    if not (api_key.isascii() and api_key.isprintable() and api_key == api_key.strip()):
        raise ValueError("an API key is printable ASCII without spaces around it")
    return (("authorization", f"Bearer {api_key}"),)
