"""Cached blocks held by their hashes, for nobody's sequence: until another pod has read them, or for good.

Works on a scheduler's pool; knows nothing of shipments or of who asked. Invariants: a hold has at least one block, and
its id names nothing else in the engine; while somebody waits for blocks, one begins only on those that would not come
free anyway, so that holds which take turns starve nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.core.block_hash import BlockHash
from pagewire.engine.scheduler import Scheduler


def pin(scheduler: Scheduler, hashes: Sequence[BlockHash]) -> tuple[int, ...]:
    """Keep what the pool caches of a chain, from its beginning, for good; return the blocks."""
    found = scheduler.pool.match(hashes)
    scheduler.pool.pin(found)
    return tuple(found)


def hold(scheduler: Scheduler, request_id: str, hashes: Sequence[BlockHash]) -> tuple[int, ...]:
    """Pin the blocks of `hashes` up to the first that the cache misses, or that would break a promise; return them.

    The hashes may begin anywhere in a chain. What the host tier has is pinned as a copy: its own pod did not ask for
    it. While somebody waits for blocks, only those are pinned that a sequence holds or that are pinned for good, and
    none beside one that is larger than the pool. Empty, and no hold, when there are none or the id is taken.
    """
    pool = scheduler.pool
    hashes = hashes[: pool.num_blocks]
    if request_id in scheduler.holds or request_id in scheduler.groups or scheduler.is_alone:
        return ()
    found = pool.match(hashes)
    if scheduler.is_short:  # what holds alone keep would never come free if the next began before the last ended
        found = pool.held_beside(found, scheduler.holds.values())
        hashes = hashes[: len(found)]
    in_pool = len(found)
    while pool.num_unreferenced(found) > pool.num_available:
        found.pop()
    pool.share(found)
    if len(found) == in_pool:
        found += pool.copy_up(hashes[in_pool:])
    if found:
        scheduler.holds[request_id] = found
    return tuple(found)


def release(scheduler: Scheduler, request_id: str) -> bool:
    """End a hold; return whether there was one."""
    block_ids = scheduler.holds.pop(request_id, None)
    if block_ids is None:
        return False
    scheduler.pool.release(block_ids)
    return True
