"""How a collector of traces is met over TLS: by the files that OpenTelemetry's own variables name, as they are now.

    OTEL_EXPORTER_OTLP_CERTIFICATE          the authority that is believed, gRPC's own list when unset
    OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE   what is shown to a collector that asks for a certificate
    OTEL_EXPORTER_OTLP_CLIENT_KEY           its key

Each may have TRACES_ before its last part, which goes first. OpenTelemetry reads them once; a certificate that lives
for a day has to be read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grpc

from pagewire.core.certificates import client_pem
from pagewire.core.renewed import Renewed

PREFIXES = ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_")


def collector_tls(environ: Mapping[str, str]) -> Renewed[grpc.ChannelCredentials] | None:
    """Return what the collector is met with, None where no file is named.

    Raises ValueError where one cannot be used, or a certificate is named without its key.
    """
    ca, cert, key = (_named(environ, last) for last in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
    if bool(cert) != bool(key):
        raise ValueError("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY go together")
    files = [Path(each) for each in (ca, cert, key) if each]
    return Renewed(lambda: grpc.ssl_channel_credentials(*client_pem(ca, cert, key)), files) if files else None


def _named(environ: Mapping[str, str], last: str) -> str:
    return next((environ[prefix + last] for prefix in PREFIXES if environ.get(prefix + last)), "")
