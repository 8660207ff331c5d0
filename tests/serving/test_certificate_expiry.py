"""When certificates are over: what /metrics shows of them, what the log says, and that a new one is seen."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest
from certificates import Certificates, issue
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pagewire.cli.certs import Authority
from pagewire.core.certificates import over_at
from pagewire.core.clock import ManualClock
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


def test_a_process_that_runs_for_long_is_told_in_its_last_week_once_a_day(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    pod = pair(certificates, "pod")
    clock = ManualClock(over_at(*pod) - 9 * DAY_S)
    expiry = CertificateExpiry([pod], clock.now)
    told = []
    for _ in range(4 * 11):  # every six hours
        list(expiry.samples())
        told.append(len(caplog.records))
        clock.advance(DAY_S / 4)
    assert told[:9] == [0] * 9
    assert told[9:] == [1 + at // 4 for at in range(len(told) - 9)]
    assert "is over in 6.8 days" in caplog.records[0].getMessage()
    assert "has been over for" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("usage", [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
def test_a_certificate_may_be_for_clients_or_servers_alone(usage: x509.ObjectIdentifier, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "router")])
    end = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(days=40)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), end.replace(year=2020), end)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "cert").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    assert over_at(tmp_path / "cert", tmp_path / "key") == end.timestamp()


def test_a_new_one_in_its_place_is_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = issue(Authority(days=100), tmp_path, "pod", days=2)
    expiry = CertificateExpiry([(str(cert), str(key))])
    (old,) = expiry.samples()
    (tmp_path / "new").mkdir()
    new_cert, new_key = issue(Authority(days=100), tmp_path / "new", "pod", days=50)
    new_cert.rename(cert)
    assert [sample.value for sample in expiry.samples()] == [old.value], "half of a pair is shown by nobody"
    new_key.rename(key)
    (new,) = expiry.samples()
    assert new.value == pytest.approx(old.value + 48 * DAY_S, abs=120)
    assert "is over in 2.0 days" in caplog.text
    assert "is over in 50" not in caplog.text
