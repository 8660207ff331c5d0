"""Which server of a Redis has a key: the only one there is, or the node of a Redis Cluster that has the key's slot.

Knows no commands but the one that reads the slots, and where others have their keys. Invariants: a map of slots that
turned out wrong is read again, at most once in REFRESH_S, by whoever asks next; nobody waits for it longer than they
wanted to wait for their answer; a node that is away costs what lies there and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

import hiredis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from pagewire.core.tasks import shared
from pagewire.serving.redis_address import TIMEOUT_S, RedisAddress
from pagewire.serving.redis_pipe import RedisPipe, encoded

log = logging.getLogger(__name__)

REFRESH_S = 1.0
# A server that says so is on its way up or down, or no longer the key's: ask again later.
PASSING = ("MOVED", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "BUSY")
Node = tuple[str, int]


class RedisServers:
    """The connections to a Redis, one for each server."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._seeds: tuple[Node, ...] = address.nodes
        self._pipes = {seed: RedisPipe(address, *seed) for seed in self._seeds}
        self._answered = self._seeds[0]  # the last one that told the slots
        self._slots: list[Node] = [] if address.is_cluster else [self._answered]
        self._reading: asyncio.Task[None] | None = None
        self._read_s = float("-inf")
        self._is_stale = address.is_cluster

    async def split(self, keys: Sequence[bytes], timeout_s: float) -> list[tuple[RedisPipe, Sequence[int]]]:
        """Return each server that has some of `keys`, with their positions.

        Raises OSError or TimeoutError where the slots are not known within `timeout_s` seconds.
        """
        if not self._address.is_cluster:
            return [(self._any(), range(len(keys)))]
        if self._is_stale:
            await self._refresh(timeout_s)
        positions: defaultdict[Node, list[int]] = defaultdict(list)
        for position, key in enumerate(keys):
            positions[self._slots[key_slot(key)]].append(position)
        return [(self._pipes[node], at) for node, at in positions.items()]

    async def ask(self, name: bytes, key: bytes, *words: bytes) -> object:
        """Send a command to the server that has its key, and return the answer; a key that has moved is followed once.

        Raises OSError where it does not answer within a second, or refuses.
        """
        for is_last in (False, True):
            pipe = self._any()
            try:
                if is_last:
                    await self._refresh(TIMEOUT_S, waits=True)
                ((pipe, _),) = await self.split([key], TIMEOUT_S)
                (answer,) = await pipe.ask(encoded(name, key, *words), 1, TIMEOUT_S)
            except OSError as error:
                self.moved()
                raise ConnectionError(f"Redis at {pipe.where}: {error or 'no answer in time'}") from error
            if not isinstance(answer, hiredis.ReplyError):
                return answer
            if str(answer).startswith(PASSING):
                self.turned_away()
            if is_last or not str(answer).startswith("MOVED"):
                raise ConnectionError(f"Redis refuses {name.decode()}: {answer}")
        raise AssertionError("the last try returns or raises")

    async def ping(self, timeout_s: float) -> None:
        """Return when a server answered, of a cluster any. Raises OSError or TimeoutError; another is next then."""
        if self._is_stale:
            await self._refresh(timeout_s)
        try:
            await self._any().ask(encoded(b"PING"), 1, timeout_s)
        except OSError:
            self.moved()
            raise

    def _any(self) -> RedisPipe:
        """Return the connection to one of the servers: which told the slots, the last time."""
        return self._pipes[self._answered]

    def moved(self) -> None:
        """A key was not where it should be, or its server is away: read the slots again."""
        self._is_stale = self._address.is_cluster

    def turned_away(self) -> None:
        """A server answered that it is not the one, or not now: look anew which is.

        A server by itself may be a replica by now, and another be met at its address; a connection that was not closed
        would never come to that one.
        """
        self.moved()
        if not self._address.is_cluster:
            self._any().close()

    def close(self) -> None:
        """Drop all connections."""
        if self._reading is not None:
            self._reading.cancel()
        for pipe in self._pipes.values():
            pipe.close()

    async def _refresh(self, timeout_s: float, *, waits: bool = False) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._reading is None or (self._reading.done() and now_s - self._read_s >= REFRESH_S):
            self._read_s = now_s
            self._reading = asyncio.create_task(self._read())
        if self._slots and not waits:
            return  # the old map serves until the new one is here
        await shared(self._reading, timeout_s)
        if not self._slots:
            raise ConnectionError("the slots of the Redis Cluster are not known")

    async def _read(self) -> None:
        for node in sorted(self._pipes, key=lambda each: each != self._answered):
            try:
                (answer,) = await self._pipes[node].ask(encoded(b"CLUSTER", b"SLOTS"), 1, TIMEOUT_S)
                self._slots = self._map(answer, node)
            except (OSError, TimeoutError, ValueError) as error:
                log.debug("slots not read from %s:%d: %s", *node, error)
                continue
            self._is_stale, self._answered = False, node
            known = set(self._slots)
            for gone in self._pipes.keys() - known - {*self._seeds, node}:
                self._pipes.pop(gone).close()
            for new in known - self._pipes.keys():
                self._pipes[new] = RedisPipe(self._address, *new)
            return

    def _map(self, answer: object, asked: Node) -> list[Node]:
        """Return the node of each slot; raises ValueError on what is no map of all slots."""
        found: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        try:
            for first, last, (host, port, *_), *_replicas in answer:  # type: ignore[attr-defined]
                if not 0 <= first <= last < REDIS_CLUSTER_HASH_SLOTS:  # before a list is made of them
                    raise ValueError(f"slots {first} to {last}")
                node = (host.decode() if host and host != b"?" else asked[0], int(port))
                found[first : last + 1] = [node] * (last + 1 - first)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"no map of slots: {answer!r:.200}") from error
        nodes = [node for node in found if node is not None]
        if len(nodes) != REDIS_CLUSTER_HASH_SLOTS or len(found) != REDIS_CLUSTER_HASH_SLOTS:
            raise ValueError("slots without a node")
        return nodes
