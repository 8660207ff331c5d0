"""`pagewire keys`: API keys, drawn and printed; what becomes of them is the operator's, in the router's key file."""

from __future__ import annotations

import json
import secrets
from typing import Annotated

import typer


def keys_create(
    tenant: Annotated[str, typer.Argument(help="whose key it is")],
    max_concurrent: Annotated[int | None, typer.Option("--max-concurrent", help="requests at once")] = None,
    tokens_per_s: Annotated[float | None, typer.Option("--tokens-per-s", help="tokens, in the mean")] = None,
    burst_tokens: Annotated[int | None, typer.Option("--burst-tokens", help="tokens that may come at once")] = None,
    cache_quota: Annotated[
        float | None, typer.Option("--cache-quota", help="share of each pod's cache, 0 to 1, kept against others")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="the most urgent of its requests, -100 to 100; 0 where not given")
    ] = None,
    operator: Annotated[bool, typer.Option("--operator", help="may see what the whole cluster does")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON value on stdout")] = False,
) -> None:
    """Draw an API key: it is printed this once, with the table of the router's key file that stands for it.

    A limit that is not given is none.
    """
    from pagewire.router.keys import KEY_BYTES, NewKey, read

    made = NewKey.of(secrets.token_bytes(KEY_BYTES))
    limits: dict[str, float | bool | None] = {
        "max_concurrent": max_concurrent, "tokens_per_s": tokens_per_s, "burst_tokens": burst_tokens,
        "cache_quota": cache_quota, "priority": priority, "operator": operator or None,
    }  # fmt: skip
    rows = [f"{name} = {json.dumps(value)}" for name, value in limits.items() if value is not None]
    table = "\n".join((f"[tenants.{json.dumps(tenant)}]", f"keys = [{json.dumps(made.line)}]", *rows))
    read(table, secret=b"any")  # what no router would take is refused here
    if as_json:
        typer.echo(json.dumps({"tenant": tenant, "key": made.key, "line": made.line, "table": table}))
        return
    typer.echo(f"key, to be given to {tenant}, and kept nowhere here:\n\n    {made.key}\n")
    typer.echo(f"for the file of --api-keys:\n\n{table}")
