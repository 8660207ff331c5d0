"""`pagewire certs`: an authority and certificates that real TLS takes, written once."""

from __future__ import annotations

import errno
import math
import re
import stat
from pathlib import Path

import pytest
from cryptography import x509

from pagewire.cli import certs
from pagewire.cli.certs import make
from pagewire.cli.cluster_tls import ClusterTls
from pagewire.core.errors import Unavailable
from pagewire.serving.tls import Tls, Wire


def test_each_certificate_goes_with_its_key_and_authority(tmp_path: Path) -> None:
    written = make(tmp_path / "new", hosts=("localhost", "10.0.0.7"))
    assert sorted(path.name for path in written) == sorted(
        ["ca.pem", *(f"{name}.{kind}" for name in ("router", "pod", "client") for kind in ("pem", "key"))]
    )
    ca = x509.load_pem_x509_certificate((tmp_path / "new/ca.pem").read_bytes())
    for name in ("router", "pod", "client"):
        cert, key = tmp_path / f"new/{name}.pem", tmp_path / f"new/{name}.key"
        Wire(Tls(cert=cert, key=key, ca=tmp_path / "new/ca.pem"))
        x509.load_pem_x509_certificate(cert.read_bytes()).verify_directly_issued_by(ca)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    hosts = x509.load_pem_x509_certificate((tmp_path / "new/pod.pem").read_bytes()).extensions
    names = hosts.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]


@pytest.mark.parametrize(
    "host",
    [
        "b\u00fccher.example",
        "",
        "two words",
        "10.0.0.0/8",
        "https://router",
        "router:8000",
        "a..b",
        "-a",
        "a" * 64,
        "a." * 127 + "b",
    ],
)
def test_what_no_client_would_look_for_is_refused_by_name(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(host))):
        make(tmp_path / "set", hosts=("localhost", host))
    assert not (tmp_path / "set").exists()


def test_names_of_all_kinds_are_taken(tmp_path: Path) -> None:
    hosts = ("router", "*.pods.serving.svc", "redis_1", "A-b.example", "xn--bcher-kva.example", "fe80::1", "1.2.3")
    make(tmp_path / "set", hosts=hosts)


@pytest.mark.parametrize("days", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_days_of_which_nobody_has_anything_are_refused(tmp_path: Path, days: float) -> None:
    with pytest.raises(ValueError, match=r"^certificates are valid for more than 0 and at most 36525 days"):
        make(tmp_path / "set", days=days)
    assert not (tmp_path / "set").exists()


def test_all_is_written_or_nothing(tmp_path: Path) -> None:
    make(tmp_path / "set")
    (tmp_path / "set" / "ca.pem").unlink()
    with pytest.raises(FileExistsError, match=r"router\.pem"):
        make(tmp_path / "set")
    assert not (tmp_path / "set" / "ca.pem").exists()  # of another set it would fit none of the others


def test_where_the_disk_is_full_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, written = certs._write, list[Path]()

    def write(path: Path, data: bytes, mode: int) -> None:
        plain(path, data[:10], mode)
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(certs, "_write", write)
    with pytest.raises(OSError, match="No space"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert len(make(tmp_path)) == 7


def test_nothing_is_written_over(tmp_path: Path) -> None:
    make(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FileExistsError):
        make(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_cluster_is_not_started_with_what_is_over_or_no_pair(tmp_path: Path) -> None:
    ClusterTls(tmp_path / "fresh", "127.0.0.1")  # which it makes
    ClusterTls(tmp_path / "fresh", "127.0.0.1")  # and finds
    make(tmp_path / "over", days=1e-9)
    with pytest.raises(Unavailable, match=r"router\.pem, .*pod\.pem, .*client\.pem expired: renew the certificates"):
        ClusterTls(tmp_path / "over", "127.0.0.1")
    make(tmp_path / "other")
    (tmp_path / "other" / "pod.key").write_bytes((tmp_path / "fresh" / "pod.key").read_bytes())
    with pytest.raises(ValueError, match="are no certificate with its key"):
        ClusterTls(tmp_path / "other", "127.0.0.1")
