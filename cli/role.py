"""`pagewire role`: has a router change the role of a pod, and waits until it has."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import typer

from pagewire.client.security import call_metadata
from pagewire.core.certificates import client_context
from pagewire.core.errors import Unavailable, from_cause
from pagewire.core.messages import Role

WAIT_S = 600.0  # the router gives up before


def run(
    router: str,
    pod_id: str,
    role: Role,
    key: str,
    *,
    tls_ca: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> None:
    """Print what the router says of the change, as JSON; raises why it refuses, Unavailable where it is no router.

    `tls_ca` is whom to believe where it speaks TLS, the system's authorities when unset; the rest is what to show it.
    Raises ValueError on a file that cannot be used, or on one of these without the other, and on what can be no key.
    """
    shown = call_metadata(key)
    context = client_context(tls_ca, tls_cert, tls_key)
    try:
        answer = httpx.post(
            f"{router.rstrip('/')}/pods/{pod_id}/role",
            json={"role": role.value},
            headers=shown,
            timeout=WAIT_S,
            trust_env=False,
            verify=context,
        )
        said = answer.json()
        refusal = None if answer.status_code == 202 else (str(said["error"]["code"]), str(said["error"]["message"]))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as problem:
        raise Unavailable(f"{router} does not answer as a router does: {problem}") from problem
    if refusal is not None:
        raise from_cause(*refusal)
    typer.echo(json.dumps(said))
