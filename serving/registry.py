"""Redis, as far as Pagewire needs it: which pods exist, and which pod probably holds which prefix.

Both are hints. Discovery bootstraps links, which tell the truth from then on; an index entry can make an answer
slower, never different. Losing Redis costs placement quality and nothing else, so nothing here raises into a
request, and every wait is bounded.

    pw:<cluster>:pods                 set of pod ids
    pw:<cluster>:pod:<pod id>         the registration as JSON, expires unless renewed
    pw:<cluster>:h:<hex hash>         set of "pod id@incarnation" that hold the chain up to this block in their pool,
                                      "pod id@incarnation+1" in host memory; only the blocks that `is_indexed` names
                                      have a key
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pagewire.core.block_hash import HASH_BYTES, BlockHash, is_indexed
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Role
from pagewire.core.tasks import heeds_cancellation

log = logging.getLogger(__name__)

REGISTRATION_TTL_S = 10.0
MAX_QUEUED_EVENTS = 100_000
BATCH = 512
MAX_REGISTRATION_BYTES = 16_384
_OUTAGE = (RedisError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a pod says of itself."""

    pod_id: str
    incarnation: str
    role: Role
    address: str
    metrics: str
    fingerprint: Fingerprint

    @property
    def member(self) -> str:
        """The pod's name in the index; another incarnation is another member."""
        return f"{self.pod_id}@{self.incarnation}"

    def member_in(self, tier: int) -> str:
        """The pod's name in the index as one that holds a block in `tier`: 0 its pool, 1 host memory."""
        return f"{self.member}+{tier}" if tier else self.member

    def to_json(self) -> str:
        """Return the form that is stored."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Registration:
        """Parse what Redis held; raises ValueError on anything that is not exactly a registration."""
        if len(text) > MAX_REGISTRATION_BYTES:
            raise ValueError(f"a registration of {len(text)} bytes")
        try:
            raw: dict[str, Any] = json.loads(text)
            fingerprint = Fingerprint(**raw.pop("fingerprint"))
            registration = cls(**{**raw, "role": Role(raw["role"]), "fingerprint": fingerprint})
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a registration: {error}") from error
        for part, field in ((registration, "pod_id incarnation address metrics"), (fingerprint, "model_digest")):
            if not all(isinstance(getattr(part, name), str) for name in field.split()):
                raise ValueError("not a registration: a field has the wrong type")
        return registration


class Registry:
    """One process's connection to the cluster's Redis. `timeout_s` bounds an index lookup; all else has a second."""

    def __init__(self, url: str, cluster: str, *, timeout_s: float = 0.02) -> None:
        options: dict[str, Any] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": Retry(NoBackoff(), 0)}
        self._redis: Redis = Redis.from_url(url, **options)
        self._prefix = f"pw:{cluster}"
        self._timeout_s = timeout_s
        self.lookup_failures = 0

    def _hash_key(self, block_hash: BlockHash) -> str:
        return f"{self._prefix}:h:{block_hash.hex()}"

    @heeds_cancellation
    async def register(self, registration: Registration) -> bool:
        """Announce a pod, or renew it; returns False where Redis did not know it. Raises RedisError or OSError."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.sadd(f"{self._prefix}:pods", registration.pod_id)
            pipe.set(
                f"{self._prefix}:pod:{registration.pod_id}",
                registration.to_json(),
                px=int(REGISTRATION_TTL_S * 1000),
                get=True,
            )
            _, before = await pipe.execute()
        return before is not None

    @heeds_cancellation
    async def unregister(self, registration: Registration) -> None:
        """Take a pod out of discovery. Raises RedisError or OSError."""
        key = f"{self._prefix}:pod:{registration.pod_id}"
        if await self._redis.get(key) != registration.to_json().encode():
            return  # a successor of the same name has registered meanwhile
        await self._redis.delete(key)
        await self._redis.srem(f"{self._prefix}:pods", registration.pod_id)

    @heeds_cancellation
    async def pods(self) -> list[Registration]:
        """Return the registrations that stand. Hostile or broken values are left out, expired names swept."""
        members: set[bytes] = await self._redis.smembers(f"{self._prefix}:pods")  # type: ignore[assignment]
        names = sorted(name.decode(errors="replace") for name in members)
        if not names:
            return []
        found: list[Registration] = []
        values = await self._redis.mget([f"{self._prefix}:pod:{name}" for name in names])
        for name, value in zip(names, values, strict=True):
            if value is None:
                await self._redis.srem(f"{self._prefix}:pods", name)
                continue
            try:
                found.append(Registration.from_json(value))
            except ValueError as error:
                log.warning("registration of %s ignored: %s", name, error)
        return found

    @heeds_cancellation
    async def lookup(self, hashes: list[BlockHash]) -> list[set[str]]:
        """Return for each hash the members that say they hold it: one round trip, empty sets when it takes too long."""
        if not hashes:
            return []
        try:
            async with asyncio.timeout(self._timeout_s), self._redis.pipeline(transaction=False) as pipe:
                for block_hash in hashes:
                    pipe.smembers(self._hash_key(block_hash))
                answers = await pipe.execute(raise_on_error=False)
        except _OUTAGE:
            self.lookup_failures += 1
            return [set() for _ in hashes]
        return [
            {member.decode(errors="replace") for member in answer} if isinstance(answer, set) else set()
            for answer in answers
        ]

    @heeds_cancellation
    async def write_index(
        self, registration: Registration, tiers: Mapping[BlockHash, int | None], *, used: Collection[int] = (0,)
    ) -> None:
        """Say in which tier the pod holds each block, None for not at all; `used` are the tiers that it ever named.

        Raises RedisError or OSError.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for block_hash, tier in tiers.items():
                key = self._hash_key(block_hash)
                if tier is not None:
                    pipe.sadd(key, registration.member_in(tier))
                if gone := [registration.member_in(other) for other in used if other != tier]:
                    pipe.srem(key, *gone)
            await pipe.execute()

    @heeds_cancellation
    async def sweep(self, entries: Iterable[tuple[BlockHash, str]]) -> None:
        """Take entries of dead incarnations out of the index; an outage leaves them to the next reader."""
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for block_hash, member in entries:
                    pipe.srem(self._hash_key(block_hash), member)
                await pipe.execute()
        except _OUTAGE as error:
            log.debug("index not swept: %s", error)

    @heeds_cancellation
    async def ping(self) -> float:
        """Return the seconds of a round trip; raises RedisError or OSError."""
        start = asyncio.get_running_loop().time()
        ping: Awaitable[bool] = self._redis.ping()  # type: ignore[assignment]
        await ping
        return asyncio.get_running_loop().time() - start

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


class Publisher:
    """Keeps a pod's registration alive and its part of the index true.

    Events go through a bounded queue in batches. Whenever something may have been lost (overflow, an outage, a Redis
    that no longer knows us) everything that is held is announced anew.
    """

    def __init__(self, registry: Registry, registration: Callable[[], Registration]) -> None:
        self._registry = registry
        self._registration = registration
        self._held: dict[BlockHash, int] = {}  # hash -> tier
        self._used = {0}  # the tiers that were ever named: entries can be nowhere else
        self._queue: OrderedDict[BlockHash, int | None] = OrderedDict()  # hash -> tier, the latest word on each
        self._announce = False
        self._filled = asyncio.Event()
        self.outages = 0

    def publish(self, stored: Iterable[CachedBlock], evicted: Iterable[CachedBlock]) -> None:
        """Take note of what the cache gained and lost; never blocks."""
        for block in evicted:
            if is_indexed(block.depth):
                self._held.pop(block.block_hash, None)
                self._note(block.block_hash, None)
        for block in stored:
            if is_indexed(block.depth):
                self._used.add(block.tier)
                self._held[block.block_hash] = block.tier
                self._note(block.block_hash, block.tier)

    def _note(self, block_hash: BlockHash, tier: int | None) -> None:
        if len(block_hash) != HASH_BYTES:
            raise ValueError(f"a block hash of {len(block_hash)} bytes")
        if len(self._queue) >= MAX_QUEUED_EVENTS:
            self._queue.clear()
            self._announce = True
        self._queue[block_hash] = tier
        self._filled.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew())
            tasks.create_task(self._flush())

    async def withdraw(self) -> None:
        """Take the pod out of discovery and its entries out of the index, as far as Redis answers."""
        registration = self._registration()
        try:
            await self._registry.unregister(registration)
            held = list(self._held)
            for start in range(0, len(held), BATCH):
                gone = dict.fromkeys(held[start : start + BATCH])
                await self._registry.write_index(registration, gone, used=self._used)
        except _OUTAGE as error:
            log.info("not withdrawn from Redis: %s", error)

    async def _renew(self) -> None:
        first = True
        while True:
            try:
                known = await self._registry.register(self._registration())
                if not known and not first:
                    self._announce = True
                    self._filled.set()
                first = False
            except _OUTAGE as error:
                self.outages += 1
                self._announce = True
                log.warning("Redis is away: %s", error)
            await asyncio.sleep(REGISTRATION_TTL_S / 5)

    async def _flush(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            try:
                await self._flush_once()
            except _OUTAGE:
                self.outages += 1
                self._announce = True
                await asyncio.sleep(REGISTRATION_TTL_S / 10)
                self._filled.set()

    async def _flush_once(self) -> None:
        if self._announce:
            self._announce = False
            for block_hash, tier in self._held.items():
                self._queue.setdefault(block_hash, tier)
        while self._queue:
            batch = dict(itertools.islice(self._queue.items(), BATCH))
            await self._registry.write_index(self._registration(), batch, used=self._used)
            # Only now: what an outage keeps from being written, removals above all, stays queued.
            for block_hash, written in batch.items():
                if self._queue.get(block_hash, -1) == written:
                    del self._queue[block_hash]
