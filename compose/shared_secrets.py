"""Writes what the processes of the stack share and nobody else may know, before any of them starts.

    /run/pagewire/cluster.toml    the cluster's secret and the URL of Redis, for --config of router and pods
    /run/redis-acl/users.acl      who may do what in Redis: one user, in the cluster's own keys

What CLUSTER_SECRET and REDIS_PASSWORD leave open is drawn once and kept in the volumes. Invariant: a secret is on no
command line and in no environment but this process's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tomllib
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

CLUSTER = Path("/run/pagewire/cluster.toml")
USERS = Path("/run/redis-acl/users.acl")
# As in docs/prefix-index.md. `probe` is for health checks: it can say PING.
ACL = """\
user default off resetpass resetkeys resetchannels -@all
user probe on nopass resetkeys resetchannels -@all +ping
user pagewire on #{digest} resetkeys ~pw:{cluster}:* resetchannels -@all \
+sadd +srem +srandmember +expire +get +set +del +ping +auth +hello +select
"""


def main() -> None:
    """Write both files; what they said before stays where nothing else is asked for."""
    told = tomllib.loads(CLUSTER.read_text(encoding="utf-8")) if CLUSTER.exists() else {}
    drawn = unquote(urlsplit(told.get("redis_url", "")).password or "") or secrets.token_urlsafe(32)
    password = os.environ.get("REDIS_PASSWORD") or drawn
    secret = os.environ.get("CLUSTER_SECRET") or told.get("cluster_secret") or secrets.token_urlsafe(32)
    cluster = os.environ.get("CLUSTER") or "pagewire"
    scheme = "rediss" if os.environ.get("REDIS_TLS") else "redis"
    url = f"{scheme}://pagewire:{quote(password, safe='')}@redis:6379/0"
    settings = {"cluster": cluster, "cluster_secret": secret, "redis_url": url}
    write(CLUSTER, "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    write(USERS, ACL.format(digest=hashlib.sha256(password.encode()).hexdigest(), cluster=cluster))


def write(path: Path, text: str) -> None:
    """Write a file at once, for this user's processes alone."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


if __name__ == "__main__":
    main()
