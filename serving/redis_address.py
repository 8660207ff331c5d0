"""Where Redis is and how it is reached: one URL for pods and routers alike.

    redis://[user:password@]host[:port][/db]        rediss://...            TLS
    redis+cluster://...                             rediss+cluster://...    Redis Cluster, by any of its nodes
    unix:///path

Redis 7 and later, Valkey 7.2 and later. Knows no keys.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import WeakSet

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError

from pagewire.serving.tls import show

CLUSTER = "+cluster"
TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A parsed URL. `username` may be empty where a password alone authenticates."""

    url: str = field(repr=False)  # as redis-py takes it
    host: str
    port: int
    path: str  # of a Unix socket, in place of host and port
    db: int
    username: str
    password: str = field(repr=False)
    is_cluster: bool
    ca: str
    cert: str
    key: str
    _tls: ssl.SSLContext | None = field(repr=False, compare=False)

    @classmethod
    def parse(cls, url: str, ca: str = "", *, cert: str = "", key: str = "") -> RedisAddress:
        """Return what `url` says. `ca` is a file of certificates to trust with TLS, the system's when empty; `cert` and
        `key` are our own, in PEM files, where the server asks for one.

        Raises ValueError on a URL that names no Redis, or a key that a passphrase protects; OSError where a file cannot
        be read or is none of its kind.
        """
        scheme = urlsplit(url).scheme
        is_cluster = scheme.endswith(CLUSTER)
        if is_cluster:
            url = scheme.removesuffix(CLUSTER) + url[len(scheme) :]
        parsed: dict[str, Any] = dict(parse_url(url))
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
        address = cls(
            url=url,
            host=parsed.get("host", "localhost"),
            port=parsed.get("port", 6379),
            path=parsed.get("path", ""),
            db=parsed.get("db", 0),
            username=parsed.get("username", ""),
            password=parsed.get("password", ""),
            is_cluster=is_cluster,
            ca=ca,
            cert=cert,
            key=key,
            _tls=ssl.create_default_context(cafile=ca or None) if is_tls else None,
        )
        address.tls()  # what is wrong with the files is said now
        return address

    def tls(self) -> ssl.SSLContext | None:
        """Return what the next connection is encrypted with, None in the clear; raises OSError as `parse` does.

        Our certificate is read each time, so that it can be renewed.
        """
        if self._tls is not None and self.cert:
            show(self._tls, self.cert, self.key)
        return self._tls

    def client(self) -> Redis | RedisCluster:
        """Return redis-py's client: every wait is bounded by a second.

        What meets a broken connection, as after a restart of the server, is tried once more; what timed out is not.
        """
        options: dict[str, Any] = {
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
        }
        if self.ca:
            options["ssl_ca_certs"] = self.ca
        if self.cert:
            options |= {"ssl_certfile": self.cert, "ssl_keyfile": self.key}
        if self.is_cluster:
            return _Cluster.from_url(self.url, **options)
        client = Redis.from_url(self.url, **options)
        if self.cert:
            client.connection_pool.connection_class = _Renewing
        return client


class _Renewing(SSLConnection):
    """redis-py's connection, which reads its certificate when it is first made and never again; this one does."""

    def _connection_arguments(self) -> Mapping[str, Any]:
        self.ssl_context.context = None
        self.ssl_context.password = ""  # or OpenSSL asks whoever sits at the terminal for the passphrase of a key
        arguments: Mapping[str, Any] = super()._connection_arguments()
        return arguments


class _Cluster(RedisCluster):
    """redis-py's client, which forgets open connections: a replaced node's, and all where its closing was cut short."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections: WeakSet[Connection] = WeakSet()
        kind = _Renewing if options.get("ssl_certfile") else self.connection_kwargs["connection_class"]

        def connection(**options: Any) -> Connection:
            made: Connection = kind(**options)
            self._connections.add(made)
            return made

        self.connection_kwargs["connection_class"] = connection  # of the nodes that it will be told of
        for node in self.nodes_manager.startup_nodes.values():
            node.connection_class = cast("type[Connection]", connection)  # it is called, and no more

    async def aclose(self) -> None:
        """Close all connections, those that it forgot among them."""
        await super().aclose()
        await asyncio.gather(*(each.disconnect() for each in tuple(self._connections)), return_exceptions=True)
