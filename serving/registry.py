"""Discovery in Redis: which pods exist.

    pw:<cluster>:pods                 set of pod ids
    pw:<cluster>:pod:<pod id>         the registration as JSON, expires unless renewed

A hint: it bootstraps links, which tell the truth from then on. Every wait is bounded by a second. Whatever keeps Redis
from answering is an OSError here. Invariant: a node of a Redis Cluster that is away takes along the registrations that
lie there and no others, and of these those that were read before stand as they were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import hiredis

from pagewire.serving.redis_address import TIMEOUT_S, RedisAddress
from pagewire.serving.redis_pipe import encoded
from pagewire.serving.redis_servers import PASSING, RedisServers
from pagewire.serving.registration import Registration

log = logging.getLogger(__name__)

REGISTRATION_TTL_S = 10.0
MAX_PODS = 10_000  # names that are looked at; more are nobody's


class Registry:
    """One process's way into discovery."""

    def __init__(self, address: RedisAddress, cluster: str) -> None:
        self._servers = RedisServers(address)
        self._prefix = f"pw:{cluster}:"
        self._names = f"{self._prefix}pods".encode()
        self._found: dict[str, Registration] = {}  # by pod id, the last time

    async def register(self, registration: Registration) -> bool:
        """Announce a pod, or renew it; returns False where Redis did not know it. Raises OSError."""
        await self._servers.ask(b"SADD", self._names, registration.pod_id.encode())
        key, ttl_ms = self._key(registration.pod_id), int(REGISTRATION_TTL_S * 1000)
        before = await self._servers.ask(
            b"SET", key, registration.to_json().encode(), b"PX", str(ttl_ms).encode(), b"GET"
        )
        return before is not None

    async def unregister(self, registration: Registration) -> None:
        """Take a pod out of discovery. Raises OSError."""
        key = self._key(registration.pod_id)
        try:
            stands = self._parsed(registration.pod_id, await self._servers.ask(b"GET", key))
        except ValueError:
            return
        if stands.member != registration.member:
            return  # a successor of the same name has registered meanwhile
        await self._servers.ask(b"DEL", key)
        await self._servers.ask(b"SREM", self._names, registration.pod_id.encode())

    async def pods(self) -> list[Registration]:
        """Return the registrations that stand. Hostile or broken values are left out, expired names swept.

        Raises OSError.
        """
        members = await self._servers.ask(b"SRANDMEMBER", self._names, b"%d" % MAX_PODS)
        if not isinstance(members, list):
            raise ConnectionError(f"Redis answers {members!r:.100} where names were asked for")
        names = sorted(name.decode(errors="replace") for name in members if isinstance(name, bytes))
        if not names:
            return []
        found: dict[str, Registration] = {}
        for name, value in zip(names, await self._values(names), strict=True):
            if value is None:
                await self._servers.ask(b"SREM", self._names, name.encode())
            elif isinstance(value, OSError):
                if name in self._found:
                    found[name] = self._found[name]
            else:
                try:
                    found[name] = self._parsed(name, value)
                except ValueError as error:
                    log.warning("registration of %s ignored: %s", name, error)
        self._found = found
        return list(found.values())

    async def aclose(self) -> None:
        """Close the connections."""
        self._servers.close()

    async def _values(self, names: Sequence[str]) -> list[object]:
        """Return what each pod's key holds, an OSError where its server did not say; raises OSError where none did."""
        keys = [self._key(name) for name in names]
        values: list[object] = [None] * len(keys)
        parts = await self._servers.split(keys, TIMEOUT_S)
        asked = (
            pipe.ask(b"".join(encoded(b"GET", keys[at]) for at in where), len(where), TIMEOUT_S)
            for pipe, where in parts
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in failed:
            if len(failed) == len(parts) or not isinstance(error, OSError):
                raise error
        for answer, (_, where) in zip(answers, parts, strict=True):
            for place, at in enumerate(where):
                values[at] = answer if isinstance(answer, BaseException) else _told(answer[place])
        if any(isinstance(value, OSError) for value in values):
            self._servers.moved()
        return values

    def _key(self, pod_id: str) -> bytes:
        return f"{self._prefix}pod:{pod_id}".encode()

    def _parsed(self, name: str, value: object) -> Registration:
        if not isinstance(value, bytes):
            raise ValueError(f"{value!r:.100}")
        registration = Registration.from_json(value)
        if registration.pod_id != name:
            raise ValueError(f"it names {registration.pod_id!r:.100}")
        return registration


def _told(value: object) -> object:
    if isinstance(value, hiredis.ReplyError) and str(value).startswith((*PASSING, "ASK")):
        return ConnectionError(str(value))
    return value
