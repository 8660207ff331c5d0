"""`pagewire certs`: an authority and certificates that real TLS takes, written once."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from pagewire.cli.certs import make
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


def test_all_is_written_or_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"A-label|ASCII"):
        make(tmp_path / "set", hosts=("b\u00fccher.example",))
    assert not (tmp_path / "set").exists()
    make(tmp_path / "set")
    (tmp_path / "set" / "ca.pem").unlink()
    with pytest.raises(FileExistsError, match=r"router\.pem"):
        make(tmp_path / "set")
    assert not (tmp_path / "set" / "ca.pem").exists()  # of another set it would fit none of the others


def test_nothing_is_written_over(tmp_path: Path) -> None:
    make(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FileExistsError):
        make(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
