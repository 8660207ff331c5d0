"""The pool of KV blocks: who holds which, which are free, and how many are promised.

What nobody holds may stay in the cache (`prefix_cache.py`), and is evicted where no block is free. A block may have
many holders; whoever is to write into one first makes it its own (`own`). Knows ids and hashes; knows nothing of
tensors, requests or time. Invariants, proved by `check()`: every block is in exactly one of {free, cached, held,
pinned}; the promised blocks can be handed out at any moment, without touching what is held or pinned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile

from pagewire.core.block_hash import BlockHash
from pagewire.core.cache_quota import CacheQuota
from pagewire.core.engine_messages import BlockLife, CachedBlock
from pagewire.engine.block import Block
from pagewire.engine.block_lives import BlockLives
from pagewire.engine.host_tier import Kept
from pagewire.engine.moves import Move, Moves, Way
from pagewire.engine.prefix_cache import PrefixCache


class OutOfBlocks(Exception):
    """The pool has not as many blocks as were asked for; nothing was taken."""


class BlockPool:
    """Reference-counted blocks with a prefix cache in the unreferenced ones.

    Its news are of every `news_stride`-th block of a chain; how long blocks live is told where `lives` are followed.
    Without `caches` every block that nobody holds is free. `kept` is what lies in host memory already.
    """

    def __init__(
        self,
        num_blocks: int,
        num_host_slots: int = 0,
        *,
        news_stride: int = 1,
        lives: BlockLives | None = None,
        caches: bool = True,
        kept: Kept | None = None,
    ) -> None:
        self._moves = Moves()
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = list(range(num_blocks - 1, -1, -1))  # unreferenced, unregistered; the last is taken first
        self.cache = PrefixCache(self._blocks, num_host_slots, self._moves, news_stride, is_on=caches, kept=kept)
        self.host = self.cache.host
        self._lives = lives
        self._pinned: set[int] = set()  # cached for good: the pool itself holds them once
        self._reserved = 0
        self._references = 0  # of all blocks together
        self.num_allocated = 0  # blocks taken from the free ones since the start

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds and that cache nothing."""
        return len(self._free)

    @property
    def num_freed(self) -> int:
        """Blocks that came to the free ones since the start: what was taken and is not missing."""
        return self.num_allocated - (len(self._blocks) - len(self._free))

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that cache a piece of a chain."""
        return self.cache.num_idle

    @property
    def num_held(self) -> int:
        """Blocks that some sequence holds, without the pinned ones."""
        return len(self._blocks) - len(self._free) - self.cache.num_idle - len(self._pinned)

    @property
    def num_pinned(self) -> int:
        """Blocks that stay cached for good, whoever else holds them."""
        return len(self._pinned)

    @property
    def num_reserved(self) -> int:
        """Blocks promised and not yet allocated."""
        return self._reserved

    @property
    def num_claims(self) -> int:
        """How often blocks are held by sequences and holds: without sharing, each would be a block of its own."""
        return self._references - len(self._pinned)

    @property
    def num_shared(self) -> int:
        """Blocks that sharing saves now: claims that need no block of their own."""
        return self.num_claims - self.num_held

    @property
    def num_available(self) -> int:
        """Blocks that may be allocated or promised now."""
        return len(self._free) + self.cache.num_idle - self._reserved

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Return the blocks that cache the longest prefix of a chain; nothing is taken."""
        return self.cache.match(hashes)

    def claim(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Hold what is cached of a chain; what the host tier has of it comes up. The caller saw to the room.

        Raises OutOfBlocks when that would break a promise.
        """
        held = self.match(hashes)
        self.share(held)
        self.cache.prove(hashes[len(held) :])
        for block_hash in hashes[len(held) :]:
            if block_hash not in self.host:
                break
            held.append(self._bring_up(block_hash))
        return held

    def copy_up(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Hold copies of blocks that are in the host tier and stay there, up to the first that is not."""
        self.cache.prove(hashes)
        self.host.touch(hashes)
        held: list[int] = []
        for block_hash in hashes:
            if block_hash not in self.host or self.num_available < 1:
                break
            (block_id,) = self.allocate(1)
            if not self.host.copy(block_hash, block_id):  # making room for it cost the block itself
                self.release([block_id])
                break
            held.append(block_id)
        return held

    def num_unreferenced(self, block_ids: Iterable[int]) -> int:
        """Return by how much `share` of these blocks would lower `num_available`."""
        return sum(self._blocks[block_id].references == 0 for block_id in block_ids)

    def num_unshared(self, block_ids: Iterable[int]) -> int:
        """Return how many of these blocks have no other holder."""
        return sum(self._blocks[block_id].references == 1 for block_id in block_ids)

    def share(self, block_ids: Sequence[int]) -> None:
        """Hold cached blocks once more; raises OutOfBlocks when that would break a promise."""
        if self.num_unreferenced(block_ids) > self.num_available:
            raise OutOfBlocks(f"{len(block_ids)} blocks to share, {self.num_available} available")
        for block_id in block_ids:
            self._blocks[block_id].references += 1
            self.cache.take_out(block_id)
        self._references += len(block_ids)
        if self._lives is not None:
            self._lives.used(block_ids)

    def is_writable(self, block_id: int) -> bool:
        """Return whether the holder of a block may write into it: it is its own, and the cache does not know it."""
        block = self._blocks[block_id]
        return block.references == 1 and block.block_hash is None

    def own(self, block_id: int) -> int:
        """Exchange a hold of a block for that of a copy that its holder may write into; raises OutOfBlocks."""
        assert not self.is_writable(block_id), f"block {block_id} is its holder's own already"
        (copy,) = self.allocate(1)
        self._moves.ask(block_id, copy, Way.WITHIN)
        self.release([block_id])
        return copy

    def hold_equal(self, block_id: int, block_hash: BlockHash) -> int:
        """Exchange a hold of a full block for that of the one that the cache knows by its hash; return which is held.

        It stays as it is where it is that one, there is none, or to hold it would break a promise.
        """
        known = self.match([block_hash])
        if not known or known == [block_id]:
            return block_id
        if self.num_unreferenced(known) > self.num_available + self.num_unshared([block_id]):
            return block_id
        self.release([block_id])
        self.share(known)
        return known[0]

    def pin(self, block_ids: Sequence[int]) -> None:
        """Keep the blocks of a chain from its beginning cached for good; raises OutOfBlocks."""
        fresh = [block_id for block_id in block_ids if block_id not in self._pinned]
        self.share(fresh)
        self._pinned.update(fresh)

    def num_pinned_in(self, block_ids: Iterable[int]) -> int:
        """Return how many of these blocks are pinned."""
        return sum(block_id in self._pinned for block_id in block_ids) if self._pinned else 0

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks nobody promised, evicting where none is free; raises OutOfBlocks."""
        if num_blocks > self.num_available:
            raise OutOfBlocks(f"{num_blocks} blocks asked, {self.num_available} available")
        return self._take(num_blocks)

    def reserve(self, num_blocks: int) -> None:
        """Promise blocks; raises OutOfBlocks."""
        if num_blocks > self.num_available:
            raise OutOfBlocks(f"{num_blocks} blocks to promise, {self.num_available} available")
        self._reserved += num_blocks

    def unreserve(self, num_blocks: int) -> None:
        """Take a promise back."""
        assert 0 <= num_blocks <= self._reserved, f"{num_blocks} of {self._reserved} promised blocks given back"
        self._reserved -= num_blocks

    def allocate_reserved(self, num_blocks: int) -> list[int]:
        """Take promised blocks; the promise was made, so this cannot fail."""
        self.unreserve(num_blocks)
        return self._take(num_blocks)

    def register(
        self, block_ids: Sequence[int], hashes: Sequence[BlockHash], first: int = 0, quota: CacheQuota | None = None
    ) -> int:
        """Let the cache know what held, full blocks contain: those of a chain from `first` on, all of it given.

        They count against `quota` while nobody holds them. Returns up to where the chain is cached. That is not all of
        it when a block's parent left the cache meanwhile; a piece that another block already stands for stays with
        that block. Where nothing is cached at all there is nothing to be done about it either: then it is all of it.
        """
        return self.cache.register(block_ids, hashes, first, quota)

    def release(self, block_ids: Sequence[int], *, parks: bool = True) -> None:
        """Hold these blocks once less. The last of a chain becomes the least recently used of them.

        What nobody holds any more is not worth a copy in host memory unless it `parks`.
        """
        blocks, free, cache = self._blocks, self._free, self.cache
        for block_id in reversed(block_ids):
            block = blocks[block_id]
            assert block.references > 0, f"block {block_id} is released and nobody holds it"
            block.references -= 1
            if block.references == 0:
                block.parks = parks
                if block.block_hash is None:
                    free.append(block_id)
                else:
                    cache.put_back(block)
        self._references -= len(block_ids)

    def spill(self, block_ids: Sequence[int]) -> list[int]:
        """Exchange holds of blocks for copies of them in host memory, nobody else's; return the slots.

        They are to be given back (`host.give_back`). Raises OutOfSlots.
        """
        slots = []
        for block_id in block_ids:
            slot, lost = self.host.lend(block_id)
            self.cache.lost(lost)
            slots.append(slot)
        self.release(block_ids, parks=False)
        return slots

    def recall_tail(self, tail_hash: BlockHash) -> int | None:
        """Hold a block with what was saved, and forget the saved one; None when it is gone. Needs a block's room."""
        if tail_hash not in self.host:
            return None
        parked = self.host.lift(tail_hash)
        (block_id,) = self.allocate(1)
        self.host.land(parked, block_id)
        return block_id

    def offload(self, most: int, keep_free: int) -> int:
        """Move up to `most` idle cached blocks to the host tier, while it has room, until `keep_free` blocks are free.

        Those that are promised do not count as free. Returns how many came free; who goes first is the
        cache's order.
        """
        before = len(self._free)
        while (
            len(self._free) - before < most
            and len(self._free) - self._reserved < keep_free
            and self.cache.num_idle
            and self.host.num_parked < self.host.capacity
        ):
            self._evict(1)
        return len(self._free) - before

    def park_all(self) -> None:
        """Move all that is cached, what is pinned too, to the host tier, of which the least useful goes for it.

        Nothing that somebody else holds, nor what follows that.
        """
        self.release([*self._pinned])
        self._pinned.clear()
        self._evict(self.cache.num_idle)

    def take_moves(self) -> tuple[Move, ...]:
        """Return the copies to make, in their order; whoever asks makes them before anybody touches the blocks."""
        return self._moves.take()

    def drain_events(self) -> tuple[tuple[CachedBlock, ...], tuple[CachedBlock, ...]]:
        """Return (stored, evicted) since the last call: what is in another tier than was told, and what is in none."""
        return self.cache.drain_events()

    def drain_lives(self) -> tuple[BlockLife, ...]:
        """Return what became of the sampled blocks whose life ended since the last call."""
        return () if self._lives is None else self._lives.drain()

    def cached_chain(self) -> tuple[CachedBlock, ...]:
        """Return everything that the cache knows, parents before children."""
        return self.cache.chains()

    def held_beside(self, block_ids: Sequence[int], tables: Iterable[Sequence[int]]) -> list[int]:
        """Return these blocks up to the first that nobody holds but those whose block tables are given."""
        claims = Counter(block_id for table in tables for block_id in table)
        return list(takewhile(lambda block_id: self._blocks[block_id].references > claims[block_id], block_ids))

    def num_orphaned(self, tables: Sequence[Sequence[int]]) -> int:
        """Return how many held blocks the block tables of all live sequences do not account for."""
        claims = Counter(block_id for table in (*tables, self._pinned) for block_id in table)
        return sum(block.references > claims[block.block_id] for block in self._blocks)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        for block in self._blocks:
            is_free = block.references == 0 and block.block_hash is None
            assert block.references >= 0
            assert (block.block_id in free) == is_free, f"block {block.block_id} is free or is not"
        self.cache.check()
        for block_id in self._pinned:
            assert self._blocks[block_id].references > 0, f"pinned block {block_id} is held by nobody"
            assert self._blocks[block_id].block_hash is not None, f"pinned block {block_id} caches nothing"
        assert self._references == sum(block.references for block in self._blocks)
        assert 0 <= self._reserved <= len(free) + self.num_cached, "more is promised than there is"

    def _take(self, num_blocks: int) -> list[int]:
        blocks, free = self._blocks, self._free
        if len(free) < num_blocks:
            self._evict(num_blocks - len(free))
        taken = [free.pop() for _ in range(num_blocks)]
        for block_id in taken:
            blocks[block_id].references = 1
        self.num_allocated += num_blocks
        self._references += num_blocks
        if self._lives is not None:
            self._lives.taken(taken)
        return taken

    def _evict(self, num_blocks: int) -> None:
        evicted = self.cache.evict(num_blocks)
        self._free += evicted
        if self._lives is not None:
            self._lives.lost(evicted)

    def _bring_up(self, block_hash: BlockHash) -> int:
        parked = self.host.lift(block_hash)
        (block_id,) = self.allocate(1)
        self.cache.bring_up(parked, block_id)
        return block_id
