"""What a process shows of itself and whom it believes, on the wires between the processes of a cluster.

Knows files of certificates, nothing of what is said over them. With a `tls_ca` both ends of every wire show a
certificate of that authority, or there is no wire; without one all is in the clear. Files are looked at again for each
new connection, so that a certificate can be renewed while the process runs. Invariant: no session of TLS 1.3 outlives
the handshake that proved its caller.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from pagewire.core.certificates import believe, client_pem, show
from pagewire.core.loopback import is_here
from pagewire.core.renewed import Renewed

ChannelOptions = Sequence[tuple[str, int | str]]


def check_redis(url: str) -> None:
    """Raise ValueError where what is said to this Redis would go over a network in the clear."""
    scheme, hosts = urlsplit(url).scheme, urlsplit(url).netloc.rpartition("@")[2].split(",")
    # The nodes of a cluster tell of others, wherever those are.
    if scheme == "redis+cluster" or (scheme == "redis" and not all(map(is_here, hosts))):
        raise ValueError("redis_url speaks in the clear, where TLS is asked for: it begins with rediss: or unix:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A certificate with its key, and the authority whose certificates are believed; PEM files.

    Without `ca` nobody is asked for a certificate. `name` stands in every certificate of the cluster and is what is
    looked for in a peer's; when empty, it is the address that was dialled.
    """

    cert: Path
    key: Path
    ca: Path | None = None
    name: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return tuple(path for path in (self.cert, self.key, self.ca) if path is not None)

    def check(self) -> None:
        """Raise ValueError, naming the file, where one cannot be read or the key is another's or has a passphrase."""
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return what a server that is not gRPC's answers with, by the files as they are; raises ValueError as `check`.

        It asks for a certificate where there is a `ca`, and has every caller show it anew.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        show(context, self.cert, self.key)
        if self.ca is not None:
            believe(context, self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return what such a server listens with, whatever is in the files later; raises ValueError as `check` does."""
        renewed = Renewed(self.context, self.files)

        def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = renewed.now()

        # The one that is listened with is looked at for its callback alone, whoever takes its place.
        context = renewed.now()
        context.sni_callback = renew  # which is called for callers that name no server, too
        return context

    def server(self) -> grpc.ServerCredentials:
        """Return what one gRPC server answers with, at one port; it asks for a certificate where there is a `ca`.

        Raises ValueError as `check` does.
        """
        renewed = Renewed(self._configuration, self.files)
        shown = renewed.now()

        def renew() -> grpc.ServerCertificateConfiguration | None:
            """Return what to show from now on, None for what is shown already."""
            nonlocal shown
            if (now := renewed.now()) is shown:
                # To be told the same anew, gRPC frees what another connection is about to take: whoever connects
                # often enough at once would end the process (grpc/grpc#36693).
                return None
            shown = now
            return now

        return grpc.dynamic_ssl_server_credentials(
            shown,
            renew,  # type: ignore[arg-type]  # None for no change, which its stub does not know
            require_client_authentication=self.ca is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        self.check()
        ca = self.ca.read_bytes() if self.ca is not None else None
        return grpc.ssl_server_certificate_configuration([(self.key.read_bytes(), self.cert.read_bytes())], ca)


class Wire:
    """How a process of the cluster listens for others and dials them: by mutual TLS, or in the clear without `tls`."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls
        self._credentials: Renewed[grpc.ChannelCredentials] | None = None
        if tls is not None:
            if tls.ca is None:
                raise ValueError("tls_ca is not set: a certificate that nobody checks protects no wire")
            tls.check()
            self._credentials = Renewed(
                lambda: grpc.ssl_channel_credentials(*client_pem(tls.ca, tls.cert, tls.key)), tls.files
            )

    @classmethod
    def of(cls, *, cert: str, key: str, ca: str, name: str) -> Wire:
        """Return the wire that settings ask for: in the clear without `ca`. Raises ValueError, naming a bad file."""
        if not ca:
            return CLEAR
        return cls(Tls(cert=Path(cert), key=Path(key), ca=Path(ca), name=name))

    @property
    def is_clear(self) -> bool:
        """True without TLS."""
        return self._tls is None

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return what a server answers with, None in the clear."""
        return self._tls.server() if self._tls is not None else None

    def channel(self, address: str, options: ChannelOptions) -> grpc.aio.Channel:
        """Return a channel to a process at `address`, which has to show a certificate of the cluster's.

        It shows what is in the files now for as long as it is open: one that is to last is opened anew for each dial.
        """
        options = [*options, ("grpc.enable_http_proxy", 0)]  # the environment's, which has no business in a cluster
        if self._tls is None or self._credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        named = [("grpc.ssl_target_name_override", self._tls.name)] if self._tls.name else []
        return grpc.aio.secure_channel(address, self._credentials.now(), options=[*options, *named])

    def explain(self, why: str) -> str:
        """Return why there is no stream, with what TLS leaves unsaid: a refused certificate is a closed socket."""
        if self._tls is None or "Socket closed" not in why:
            return why
        return f"{why}; it may refuse the certificate in {self._tls.cert}"


CLEAR = Wire()
