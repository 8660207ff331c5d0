"""Keeps a pod's registration alive and its part of the index true, beside whatever the pod does.

Invariants: publishing never blocks and never raises into the pod; one batch is on its way at a time, so that a slow
Redis slows the publisher and nobody else; nothing is written under an index id that is not registered, so a router
that meets a name has had the time to hear of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Collection, Iterable

from pagewire.core.block_hash import BlockHash, is_indexed
from pagewire.core.clock import Clock, MonotonicClock
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.index_member import MAX_INDEX_ID
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.ledger import Ledger
from pagewire.serving.registration import Registration
from pagewire.serving.registry import REGISTRATION_TTL_S, Registry

log = logging.getLogger(__name__)

BATCH = 256  # entries written at once: half a millisecond of this process
WITHDRAW_S = 2.0  # a drain waits for it: entries that stay are looked at by nobody once their pod is not registered


def draw_index_id() -> int:
    """Return a number for a pod to go by."""
    return 1 + secrets.randbelow(MAX_INDEX_ID)


class Publisher:
    """One pod's voice in Redis."""

    def __init__(
        self, registry: Registry, index: BlockIndex, registration: Registration, *, clock: Clock | None = None
    ) -> None:
        self._registry = registry
        self._index = index
        self._registration = registration
        self._clock = clock or MonotonicClock()
        self._ledger = Ledger(draw_index_id, self._clock.now())
        self._registered_id = 0
        self._was_away = False  # Redis, when it was last told of the pod
        self._filled = asyncio.Event()
        self.registered = asyncio.Event()  # once, for good
        self.outages = 0

    @property
    def registration(self) -> Registration:
        """What the pod says of itself now."""
        return dataclasses.replace(self._registration, index_id=self._ledger.index_id)

    def publish(self, stored: Iterable[CachedBlock], evicted: Iterable[CachedBlock]) -> None:
        """Take note of what the cache gained and lost; never blocks."""
        for block in evicted:
            if is_indexed(block.depth):
                self._ledger.evicted(block.block_hash)
        for block in stored:
            if is_indexed(block.depth):
                self._ledger.stored(block.block_hash, block.tier)
        self._filled.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew())
            tasks.create_task(self._write())

    async def withdraw(self) -> None:
        """Take the pod out of discovery and its entries out of the index, as far as Redis answers."""
        held = self._ledger.all_held()
        try:
            async with asyncio.timeout(WITHDRAW_S):
                await self._registry.unregister(self._registration)
                for start in range(0, len(held), BATCH):
                    gone = dict.fromkeys(held[start : start + BATCH])
                    await self._index.write(self._ledger.index_id, gone, used=self._ledger.used)
        except (OSError, TimeoutError) as error:
            log.info("not withdrawn from Redis: %s", error)

    async def _renew(self) -> None:
        while True:
            try:
                await self._register()
            except (OSError, TimeoutError) as error:
                self._away(error)
            except Exception:  # our own bug, once, must not take the pod out of discovery for good
                log.exception("the pod could not be registered")
            await asyncio.sleep(REGISTRATION_TTL_S / 5)

    async def _register(self) -> None:
        registration = self.registration
        was_known = await self._registry.register(registration)
        if self._registered_id and (self._was_away or not was_known):
            self._ledger.announce()
        if self._was_away:
            log.info("Redis is told of this pod again")
        self._was_away = False
        self._registered_id = registration.index_id
        self._filled.set()
        self.registered.set()

    async def _write(self) -> None:
        while True:
            await self._until_due()
            try:
                await self._write_due()
            except (OSError, TimeoutError) as error:
                self._away(error)
                await asyncio.sleep(REGISTRATION_TTL_S / 10)
            except Exception:  # likewise the index
                log.exception("the prefix index could not be written")
                await asyncio.sleep(REGISTRATION_TTL_S / 10)

    async def _write_due(self) -> None:
        while True:
            if self._registered_id != self._ledger.index_id:
                await self._register()
            batch = self._ledger.next_batch(BATCH, self._clock.now())
            if batch is None:
                return
            missed: Collection[BlockHash] = batch.tiers
            with contextlib.suppress(OSError, TimeoutError):
                missed = await self._index.write(batch.index_id, batch.tiers, used=batch.used)
            if missed:
                self.outages += 1
                self._ledger.missed(batch, missed, self._clock.now())
            else:
                self._ledger.written(batch)

    async def _until_due(self) -> None:
        self._filled.clear()
        due_s = self._ledger.due_s(self._clock.now())
        if due_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due_s):
                    await self._filled.wait()

    def _away(self, error: Exception) -> None:
        """Redis was not told of the pod; an outage is logged when it begins and when it is over."""
        self.outages += 1
        if not self._was_away:
            log.warning("Redis is not told of this pod now: %s", error)
        self._was_away = True
