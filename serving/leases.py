"""Names in Redis that one process of a cluster at a time may hold.

    pw:<cluster>:lease:<name>         who holds it, expires unless renewed

Single commands on single keys: no script, so that a user may be kept from them and a Redis Cluster serves as well.
Invariant: whoever is told that a name is its own is the one in Redis, and stays that for the lease's time unless Redis
forgets. A hint all the same, as everything in Redis: what must never happen twice is checked by whoever does it.
"""

from __future__ import annotations

from pagewire.core.clock import Clock, MonotonicClock
from pagewire.serving.redis_address import TIMEOUT_S, RedisAddress
from pagewire.serving.redis_servers import RedisServers


class Leases:
    """One process's way to them. Every wait is bounded by a second."""

    def __init__(self, address: RedisAddress, cluster: str, *, clock: Clock | None = None) -> None:
        self._servers = RedisServers(address)
        self._prefix = f"pw:{cluster}:lease"
        self._clock = clock or MonotonicClock()
        self._until_s: dict[tuple[str, str], float] = {}  # of those that are held here, by name and holder

    async def claim(self, name: str, holder: str, ttl_s: int) -> bool:
        """Take a name for `ttl_s` seconds, or keep it so long; False while somebody else has it. Raises OSError."""
        key, asked_s = self._key(name), self._clock.now()
        ttl = str(ttl_s).encode()
        is_ours = bool(await self._servers.ask(b"SET", key, holder.encode(), b"NX", b"EX", ttl))
        if not is_ours and await self._holds(key, holder):
            # It may have expired since, and be somebody else's: theirs is prolonged then, and not taken for ours.
            await self._servers.ask(b"EXPIRE", key, ttl)
            is_ours = await self._holds(key, holder)
        if is_ours:
            self._until_s[name, holder] = asked_s + ttl_s
        else:
            self._until_s.pop((name, holder), None)
        return is_ours

    async def give_up(self, name: str, holder: str) -> None:
        """Let go of a name, which ends by itself where it is about to; no-op for somebody else's. Raises OSError."""
        until_s = self._until_s.pop((name, holder), 0.0)
        key = self._key(name)
        # Between the two commands it must not become another's: each takes a second at most.
        if self._clock.now() + 2 * TIMEOUT_S < until_s and await self._holds(key, holder):
            await self._servers.ask(b"DEL", key)

    async def aclose(self) -> None:
        """Close the connections."""
        self._servers.close()

    async def _holds(self, key: bytes, holder: str) -> bool:
        return await self._servers.ask(b"GET", key) == holder.encode()

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}:{name}".encode()
