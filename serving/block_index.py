"""The prefix index in Redis: who probably holds which beginning of a prompt.

    pw:<cluster>:h:<hash>     set of members (core/index_member.py), the pods that hold the chain up to this block and
                              where; the hash as its 16 bytes; only blocks that `is_indexed` names have a key

Every command names one key, so that a Redis Cluster can spread them. Keys expire after INDEX_TTL_S unless a pod that
holds the block renews them (serving/ledger.py), so what dead pods and dead clusters leave behind is gone by then.

A hint, never the truth: what is looked up is answered within `timeout_s` or done without, and a server that does not
answer is asked less (serving/breaker.py). Values of other types, names that are nobody's and sets of any size under our
keys cost a hit and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import hiredis

from pagewire.core.block_hash import HASH_BYTES, BlockHash
from pagewire.core.clock import Clock, MonotonicClock
from pagewire.core.index_member import member
from pagewire.serving.breaker import Breaker
from pagewire.serving.redis_address import TIMEOUT_S, RedisAddress
from pagewire.serving.redis_pipe import RedisPipe, encoded
from pagewire.serving.redis_servers import PASSING, RedisServers

log = logging.getLogger(__name__)

INDEX_TTL_S = 3600
MAX_MEMBERS = 1024  # of a key that are read: more pods than that hold only what all prompts begin with

Members = Sequence[bytes]


class BlockIndex:
    """One process's way into the index. `timeout_s` bounds a lookup; writing has a second."""

    def __init__(
        self, address: RedisAddress, cluster: str, *, timeout_s: float = 0.005, clock: Clock | None = None
    ) -> None:
        self._servers = RedisServers(address)
        self._prefix = f"pw:{cluster}:h:".encode()
        self._timeout_s = timeout_s
        self._clock = clock or MonotonicClock()
        self._breaker = Breaker()
        size = b"$%d\r\n" % (len(self._prefix) + HASH_BYTES)
        self._head = b"*3\r\n$11\r\nSRANDMEMBER\r\n" + size + self._prefix
        self._tail = b"\r\n$%d\r\n%d\r\n" % (len(str(MAX_MEMBERS)), MAX_MEMBERS)
        self.failures = 0  # lookups that had no answer in time
        self.skipped = 0  # lookups that were not tried, since those before had none
        self.refused = 0  # writes that Redis refused for good: permissions, memory, another type

    @property
    def is_away(self) -> bool:
        """True while lookups are held back because none was answered."""
        return self._breaker.is_open

    async def lookup(self, hashes: Sequence[BlockHash]) -> Sequence[Members] | None:
        """Return for each hash the members that say they hold it, None when that would take too long. Never raises."""
        if not hashes:
            return []
        if not self._breaker.allows(self._clock.now()):
            self.skipped += 1
            return None
        try:
            answers = await self._read(hashes)
        except (OSError, TimeoutError):
            self.failures += 1
            self._servers.moved()
            self._breaker.failed(self._clock.now())
            return None
        except asyncio.CancelledError:
            self._breaker.given_up(self._clock.now())
            raise
        self._breaker.succeeded()
        return answers

    async def write(
        self, index_id: int, tiers: Mapping[BlockHash, int | None], *, used: Collection[int] = (0,)
    ) -> Collection[BlockHash]:
        """Say in which tier a pod holds each block, None for not at all; `used` are the tiers that it ever named.

        Returns the blocks that a node of a Redis Cluster did not take while others took theirs; raises OSError or
        TimeoutError where nothing was taken. To repeat what was is harmless.
        """
        blocks = list(tiers)
        keys = [self._prefix + block_hash for block_hash in blocks]
        commands = [_commands(key, index_id, tier, used) for key, tier in zip(keys, tiers.values(), strict=True)]
        return [blocks[at] for at in await self._send(keys, commands)]

    async def sweep(self, entries: Iterable[tuple[BlockHash, bytes]]) -> None:
        """Take entries of the dead out of the index; an outage leaves them to the next reader, or to their expiry."""
        keys, commands = [], []
        for block_hash, gone in entries:
            keys.append(self._prefix + block_hash)
            commands.append([encoded(b"SREM", keys[-1], gone)])
        try:
            await self._send(keys, commands)
        except (OSError, TimeoutError) as error:
            log.debug("index not swept: %s", error)

    async def ping(self, timeout_s: float = TIMEOUT_S) -> None:
        """Return when Redis answered; raises OSError or TimeoutError."""
        await self._servers.ping(timeout_s)

    async def aclose(self) -> None:
        """Close the connections."""
        self._servers.close()

    async def _read(self, hashes: Sequence[BlockHash]) -> Sequence[Members]:
        until_s = self._clock.now() + self._timeout_s
        parts = await self._servers.split([self._prefix + each for each in hashes], self._timeout_s)
        if len(parts) == 1:
            return await self._read_from(parts[0][0], hashes, until_s)
        found: list[Members] = [()] * len(hashes)
        # One node of a cluster that is away costs the others nothing.
        asked = (self._read_from(pipe, [hashes[at] for at in where], until_s) for pipe, where in parts)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for (_, where), answer in zip(parts, answers, strict=True):
            if isinstance(answer, BaseException):
                self._servers.moved()
                continue
            for at, members in zip(where, answer, strict=True):
                found[at] = members
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failed) == len(parts):
            raise failed[0]
        return found

    async def _read_from(self, pipe: RedisPipe, hashes: Sequence[BlockHash], until_s: float) -> Sequence[Members]:
        payload = self._head + (self._tail + self._head).join(hashes) + self._tail
        return self._members(await pipe.ask(payload, len(hashes), until_s - self._clock.now()))

    def _members(self, answers: Sequence[object]) -> list[Members]:
        found = [_names(answer) for answer in answers]
        errors = [str(answer) for answer in answers if isinstance(answer, hiredis.ReplyError)]
        if any(error.startswith(PASSING) for error in errors):
            self._servers.turned_away()
        if len(errors) == len(answers) and not any(error.startswith(("MOVED", "ASK", "WRONGTYPE")) for error in errors):
            raise ConnectionError(f"Redis refuses lookups: {errors[0]}")
        return found

    async def _send(self, keys: Sequence[bytes], commands: Sequence[Sequence[bytes]]) -> list[int]:
        """Return the positions of the keys whose server took nothing; raises where none took anything."""
        if not keys:
            return []
        parts = await self._servers.split(keys, TIMEOUT_S)
        asked = (self._send_to(pipe, [each for at in where for each in commands[at]]) for pipe, where in parts)
        sent = await asyncio.gather(*asked, return_exceptions=True)
        failed = [(error, where) for error, (_, where) in zip(sent, parts, strict=True) if error is not None]
        if unforeseen := [error for error, _ in failed if not isinstance(error, (OSError, TimeoutError))]:
            raise unforeseen[0]
        if len(failed) == len(parts):
            raise failed[0][0]
        return [at for _, where in failed for at in where]

    async def _send_to(self, pipe: RedisPipe, commands: Sequence[bytes]) -> None:
        try:
            answers = await pipe.ask(b"".join(commands), len(commands), TIMEOUT_S)
        except (OSError, TimeoutError):
            self._servers.moved()
            raise
        errors = [str(answer) for answer in answers if isinstance(answer, hiredis.ReplyError)]
        if passing := [error for error in errors if error.startswith(PASSING)]:
            self._servers.turned_away()
            raise ConnectionError(f"Redis does not take it now: {passing[0]}")
        # A slot on its way to another node (ASK) is made good when the entry is renewed.
        if refused := [error for error in errors if not error.startswith("ASK")]:
            if not self.refused:
                log.warning("Redis refuses to write to the prefix index: %s", refused[0])
            self.refused += len(refused)


def _names(answer: object) -> Members:
    """Return the members of a set, none of what is no set of texts."""
    return answer if isinstance(answer, list) and {bytes}.issuperset(map(type, answer)) else ()


def _commands(key: bytes, index_id: int, tier: int | None, used: Collection[int]) -> list[bytes]:
    commands = []
    if tier is not None:
        commands.append(encoded(b"SADD", key, member(index_id, tier)))
        commands.append(encoded(b"EXPIRE", key, b"%d" % INDEX_TTL_S))
    if gone := [member(index_id, other) for other in used if other != tier]:
        commands.append(encoded(b"SREM", key, *gone))
    return commands
