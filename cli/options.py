"""Options that several commands have, each with its help in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ApiKey = Annotated[str, typer.Option("--api-key", envvar="PAGEWIRE_API_KEY", help="key that the server asks for")]
TlsCa = Annotated[
    Path | None, typer.Option("--tls-ca", help="PEM file of the authority of the server's certificate", metavar="FILE")
]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", help="PEM file of the certificate to show to it", metavar="FILE")
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="PEM file of that certificate's key", metavar="FILE")]
Json = Annotated[bool, typer.Option("--json", help="one JSON value on stdout")]
Slo = Annotated[str, typer.Option("--slo", help="what a good request meets: ttft=500ms,tpot=50ms,e2e=10s")]
Records = Annotated[
    Path | None, typer.Option("--records", help="a record of each request, as .jsonl or .parquet", metavar="FILE")
]
Figures = Annotated[Path | None, typer.Option("--json", help="the figures, as JSON", metavar="FILE")]
