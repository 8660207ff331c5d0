"""When certificates are over: what /metrics shows of them, what the log says, and that a new one is seen."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from certificates import Certificates

from pagewire.cli.certs import Authority
from pagewire.core.certificates import over_at
from pagewire.serving.certificate_expiry import CertificateExpiry

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.write(tmp_path_factory.mktemp("certificates"))


def pair(certificates: Certificates, name: str) -> tuple[str, str]:
    return str(certificates.path(f"{name}.pem")), str(certificates.path(f"{name}.key"))


@pytest.mark.parametrize(("name", "days"), [("pod", 1), ("elsewhere", 1), ("expired", -1)])
def test_a_certificate_says_when_it_is_over(certificates: Certificates, name: str, days: float) -> None:
    """Whoever signed it, whomever it names, and when it is."""
    assert over_at(*pair(certificates, name)) == pytest.approx(time.time() + days * DAY_S, abs=120)


def test_what_is_no_certificate_says_nothing(certificates: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        over_at(tmp_path / "none", tmp_path / "none")
    with pytest.raises(ValueError, match="no certificate with its key"):
        over_at(pair(certificates, "pod")[0], pair(certificates, "router")[1])


def test_what_cannot_be_read_is_not_shown_and_keeps_nobody_from_a_start(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    mixed = (pair(certificates, "pod")[0], pair(certificates, "router")[1])
    assert list(CertificateExpiry([mixed]).samples()) == []
    assert f"when {mixed[0]} is over is not known" in caplog.text


def test_each_is_shown_once_and_told_of_where_it_is_soon(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    pod, expired = pair(certificates, "pod"), pair(certificates, "expired")
    expiry = CertificateExpiry([pod, ("", ""), pod, expired])
    for _ in range(2):
        assert {sample.labels["file"]: sample.value for sample in expiry.samples()} == {
            each[0]: over_at(*each) for each in (pod, expired)
        }
    assert [record.getMessage() for record in caplog.records] == [
        f"certificate {pod[0]} is over in 1.0 days: write a new one in its place",
        f"certificate {expired[0]} has been over for 1.0 days: write a new one in its place",
    ]
    caplog.clear()
    before = CertificateExpiry([pod], now_s=lambda: time.time() - 6.5 * DAY_S)
    assert len(list(before.samples())) == 1
    assert caplog.records == []


def test_a_new_one_in_its_place_is_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = Authority(days=100).issue(tmp_path, "pod", days=2)
    expiry = CertificateExpiry([(str(cert), str(key))])
    (old,) = expiry.samples()
    (tmp_path / "new").mkdir()
    new_cert, new_key = Authority(days=100).issue(tmp_path / "new", "pod", days=50)
    new_cert.rename(cert)
    assert [sample.value for sample in expiry.samples()] == [old.value], "half of a pair is shown by nobody"
    new_key.rename(key)
    (new,) = expiry.samples()
    assert new.value == pytest.approx(old.value + 48 * DAY_S, abs=120)
    assert "is over in 2.0 days" in caplog.text
    assert "is over in 50" not in caplog.text
