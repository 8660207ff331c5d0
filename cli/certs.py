"""An authority and certificates for a test cluster. A real one has its own, and renews them by itself.

Every certificate is one of a server and of a client, since both ends of a wire inside the cluster show one. Invariant:
nothing that is there already is written over.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAMES = ("router", "pod", "client")
HOSTS = ("localhost", "127.0.0.1", "::1", "pagewire")
MAX_HOST = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII | re.IGNORECASE)
MAX_DAYS = 36_525.0  # a century
BACKDATED = datetime.timedelta(minutes=5)  # for clocks that are behind


class Authority:
    """A key that signs certificates, each valid for `days` from now; below 0 they are over already."""

    def __init__(self, *, days: float) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Pagewire test authority")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = self._builder(self._name, self._key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        """The certificate that others believe in."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def signed(self, name: str, *, days: float, hosts: Sequence[str] = HOSTS) -> tuple[bytes, bytes]:
        """Return a certificate of whoever is met at `hosts`, and its key; raises ValueError on what is no host."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            self._builder(_name(f"pagewire {name}"), key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: float) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        until = now + datetime.timedelta(days=days)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, until) - BACKDATED)
            .not_valid_after(until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(signer, critical=False)
        )


def make(folder: Path, *, days: float = 30.0, hosts: Sequence[str] = HOSTS) -> list[Path]:
    """Write ca.pem, and NAME.pem with NAME.key for a router, the pods and a client: all of them or none.

    Raises FileExistsError where one is there already, ValueError on a host that a certificate cannot name, or days of
    which nobody would have anything.
    """
    if not 0 < days <= MAX_DAYS:
        raise ValueError(f"certificates are valid for more than 0 and at most {MAX_DAYS:g} days, not {days:g}")
    authority, files = Authority(days=days), dict[Path, tuple[bytes, int]]()
    for name in NAMES:
        certificate, key = authority.signed(name, days=days, hosts=hosts)
        files |= {folder / f"{name}.pem": (certificate, 0o644), folder / f"{name}.key": (key, 0o600)}
    files = {folder / "ca.pem": (authority.pem, 0o644), **files}
    if there := [path for path in files if path.exists()]:  # parts of two sets would not fit one another
        raise FileExistsError(errno.EEXIST, "it is there already", str(there[0]))
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as failed:
        for path, (data, mode) in files.items():
            failed.callback(path.unlink, missing_ok=True)
            _write(path, data, mode)
        failed.pop_all()
    return list(files)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        # Whatever is ASCII could be written into it, and then no client would find what it looks for.
        if len(host) > MAX_HOST or not all(map(_LABEL.fullmatch, host.removeprefix("*.").split("."))):
            raise ValueError(f"a certificate names hosts and addresses, and {host!r} is neither") from None
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
