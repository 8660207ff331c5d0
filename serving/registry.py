"""Discovery in Redis: which pods exist.

    pw:<cluster>:pods                 set of pod ids
    pw:<cluster>:pod:<pod id>         the registration as JSON, expires unless renewed

A hint: it bootstraps links, which tell the truth from then on. Every wait is bounded by a second. Whatever keeps Redis
from answering is an OSError here.
"""

from __future__ import annotations

import logging
from typing import Any

from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.redis_outage import raises_os_error
from pagewire.serving.registration import Registration

log = logging.getLogger(__name__)

REGISTRATION_TTL_S = 10.0
MAX_PODS = 10_000  # names that are looked at; more are nobody's


class Registry:
    """One process's way into discovery."""

    def __init__(self, address: RedisAddress, cluster: str) -> None:
        self._redis: Any = address.client()  # one of two clients whose methods are the same
        self._prefix = f"pw:{cluster}"

    @raises_os_error
    async def register(self, registration: Registration) -> bool:
        """Announce a pod, or renew it; returns False where Redis did not know it. Raises OSError."""
        await self._redis.sadd(f"{self._prefix}:pods", registration.pod_id)
        before = await self._redis.set(
            self._key(registration.pod_id), registration.to_json(), px=int(REGISTRATION_TTL_S * 1000), get=True
        )
        return before is not None

    @raises_os_error
    async def unregister(self, registration: Registration) -> None:
        """Take a pod out of discovery. Raises OSError."""
        value = await self._redis.get(self._key(registration.pod_id))
        try:
            stands = Registration.from_json(value or b"")
        except ValueError:
            return
        if stands.member != registration.member:
            return  # a successor of the same name has registered meanwhile
        await self._redis.delete(self._key(registration.pod_id))
        await self._redis.srem(f"{self._prefix}:pods", registration.pod_id)

    @raises_os_error
    async def pods(self) -> list[Registration]:
        """Return the registrations that stand. Hostile or broken values are left out, expired names swept.

        Raises OSError.
        """
        members = await self._redis.srandmember(f"{self._prefix}:pods", MAX_PODS)
        names = sorted(name.decode(errors="replace") for name in members)
        if not names:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.get(self._key(name))
            values = await pipe.execute(raise_on_error=False)
        found: list[Registration] = []
        for name, value in zip(names, values, strict=True):
            if value is None:
                await self._redis.srem(f"{self._prefix}:pods", name)
                continue
            try:
                found.append(self._parsed(name, value))
            except ValueError as error:
                log.warning("registration of %s ignored: %s", name, error)
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _key(self, pod_id: str) -> str:
        return f"{self._prefix}:pod:{pod_id}"

    def _parsed(self, name: str, value: object) -> Registration:
        if not isinstance(value, bytes):
            raise ValueError(f"{value!r:.100}")
        registration = Registration.from_json(value)
        if registration.pod_id != name:
            raise ValueError(f"it names {registration.pod_id!r:.100}")
        return registration
