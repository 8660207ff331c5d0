"""Where Redis is and how it is reached: one URL for pods and routers alike.

    redis://[user:password@]host[:port][/db]        rediss://...            TLS
    redis+cluster://host[:port][,host[:port]]...    rediss+cluster://...    Redis Cluster, by some of its nodes
    unix:///path

Redis 7 and later, Valkey 7.2 and later. Knows no keys.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio.connection import parse_url

from pagewire.core.certificates import client_context
from pagewire.core.renewed import Renewed

CLUSTER = "+cluster"
TIMEOUT_S = 1.0
UNREADABLE = (
    "redis_url names no Redis: it is redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix:///path, "
    "with +cluster behind the scheme for a cluster; in a password / ? # @ and % are %2F %3F %23 %40 and %25"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A parsed URL. `username` may be empty where a password alone authenticates."""

    nodes: tuple[tuple[str, int], ...]  # hosts and ports: of the server, or of a Redis Cluster's nodes that were named
    path: str  # of a Unix socket, in place of the server's host and port
    db: int
    username: str
    password: str = field(repr=False)
    is_cluster: bool
    _tls: Renewed[ssl.SSLContext] | None = field(repr=False, compare=False)

    @classmethod
    def parse(cls, url: str, ca: str = "", *, cert: str = "", key: str = "") -> RedisAddress:
        """Return what `url` says. `ca` is a file of certificates to trust with TLS, the system's when empty; `cert` and
        `key` are our own, in PEM files, where the server asks for one.

        Raises ValueError on a URL that names no Redis, or a file that cannot be used, as a key that a passphrase
        protects.
        """
        scheme, _, _ = url.partition("://")
        is_cluster = scheme.endswith(CLUSTER)
        if is_cluster:
            url = scheme.removesuffix(CLUSTER) + url[len(scheme) :]
        try:
            urls = _of_each_node(url)
            nodes: list[dict[str, Any]] = [dict(parse_url(each)) for each in urls]
        except ValueError:  # what it says may have a part of a password in it
            raise ValueError(UNREADABLE) from None
        if len(urls) > 1 and not is_cluster:
            raise ValueError("several servers were named, but the URL's scheme does not end with +cluster")
        parsed = nodes[0]
        is_tls = url.startswith("rediss:")
        if (ca or cert) and not is_tls:
            what = "a CA" if ca else "a certificate"
            raise ValueError(
                f"{what} was given for Redis, but its URL does not begin with rediss: nothing is encrypted"
            )
        if bool(cert) != bool(key):
            raise ValueError("a certificate for Redis and its key go together")
        if is_cluster and (parsed.get("path") or parsed.get("db")):
            raise ValueError("a Redis Cluster has neither a socket's path nor a database number")
        return cls(
            nodes=tuple((each.get("host", "localhost"), each.get("port", 6379)) for each in nodes),
            path=parsed.get("path", ""),
            db=parsed.get("db", 0),
            username=parsed.get("username", ""),
            password=parsed.get("password", ""),
            is_cluster=is_cluster,
            _tls=_renewed(ca, cert, key) if is_tls else None,
        )

    def tls(self) -> ssl.SSLContext | None:
        """Return what the next connection is encrypted with, by the files as they are now; None in the clear."""
        return None if self._tls is None else self._tls.now()


def _renewed(ca: str, cert: str, key: str) -> Renewed[ssl.SSLContext]:
    """Return how a Redis is met that shows a certificate of `ca`, and is shown `cert`; see `RedisAddress.parse`."""
    return Renewed(partial(client_context, ca, cert, key), [Path(file) for file in (ca, cert, key) if file])


def _of_each_node(url: str) -> list[str]:
    """Return a URL for each node that `url` names, separated by commas; the rest is the same. Raises ValueError."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    names = hosts.split(",")
    if len(names) == 1:
        return [url]
    if not all(names):
        raise ValueError("a comma in Redis' URL has no host beside it")
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{name}")) for name in names]
