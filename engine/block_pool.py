"""The pool of KV blocks: who holds which, what is cached in the free ones, how many are promised.

What leaves the cache may go to the host tier and come back from there; so does the unfilled block of a preempted
sequence, which no cache lookup finds. A block may have many holders; whoever is to write into one first makes it its
own (`own`). Knows ids and hashes; knows nothing of tensors, requests or time. Invariants, proved by `check()`: every
block is in exactly one of {free, cached, held, pinned}; what the cache holds of a chain is always a prefix of it, which
goes on in the host tier; nothing is in both; the promised blocks can be handed out at any moment, without touching what
is held or pinned.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from pagewire.core.block_hash import BlockHash
from pagewire.core.engine_messages import CachedBlock
from pagewire.engine.block import Block
from pagewire.engine.host_tier import HostTier, Parked
from pagewire.engine.moves import Move, Moves, Way

POOL, HOST = 0, 1  # tiers


class OutOfBlocks(Exception):
    """The pool has not as many blocks as were asked for; nothing was taken."""


class BlockPool:
    """Reference-counted blocks with a prefix cache in the unreferenced ones, least recently used first out."""

    def __init__(self, num_blocks: int, num_host_slots: int = 0) -> None:
        self._moves = Moves()
        self.host = HostTier(num_host_slots, self._moves)
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = list(range(num_blocks - 1, -1, -1))  # unreferenced, unregistered; the last is taken first
        self._cached: OrderedDict[int, None] = OrderedDict()  # unreferenced, registered; least recently used first
        self._by_hash: dict[BlockHash, int] = {}
        self._pinned: set[int] = set()  # cached for good: the pool itself holds them once
        self._reserved = 0
        self._references = 0  # of all blocks together
        # What changed since it was last told: hash -> (the tier that was told, None for none, and the depth).
        self._events: dict[BlockHash, tuple[int | None, int]] = {}

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds and that cache nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that cache a piece of a chain."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks that some sequence holds, without the pinned ones."""
        return len(self._blocks) - len(self._free) - len(self._cached) - len(self._pinned)

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
        return len(self._free) + len(self._cached) - self._reserved

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Return the blocks that cache the longest prefix of a chain; nothing is taken."""
        found = []
        for block_hash in hashes:
            block_id = self._by_hash.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def claim(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Hold what is cached of a chain; what the host tier has of it comes up. The caller saw to the room.

        Raises OutOfBlocks when that would break a promise.
        """
        held = self.match(hashes)
        self.share(held)
        following = hashes[len(held) :]
        self.host.touch(following)  # or making room for the first could cost the last
        for block_hash in following:
            if block_hash not in self.host:
                break
            held.append(self._bring_up(block_hash))
        return held

    def copy_up(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Hold copies of blocks that are in the host tier and stay there, up to the first that is not."""
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
            self._cached.pop(block_id, None)
        self._references += len(block_ids)

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
        return [self._take() for _ in range(num_blocks)]

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
        return [self._take() for _ in range(num_blocks)]

    def register(self, block_id: int, block_hash: BlockHash, parent_hash: BlockHash | None, depth: int) -> bool:
        """Let the cache know what a held, full block contains; `parent_hash` is None for the first of a chain.

        Returns whether the chain is cached up to here. It is not when its parent left the cache meanwhile; a chain
        that another block already stands for stays with that block.
        """
        block = self._blocks[block_id]
        assert block.references > 0, f"block {block_id} is registered and nobody holds it"
        if block_hash in self._by_hash:
            return True
        parent = None if parent_hash is None else self._by_hash.get(parent_hash)
        if (parent_hash is not None and parent is None) or block.block_hash is not None:
            return False
        if block_hash in self.host:  # it was computed once more
            self._note(block_hash, depth, HOST)
            self.host.discard(block_hash)
        else:
            self._note(block_hash, depth, None)
        block.block_hash, block.parent, block.depth = block_hash, parent, depth
        self._by_hash[block_hash] = block_id
        if parent is not None:
            self._blocks[parent].children.add(block_id)
        return True

    def release(self, block_ids: Sequence[int], *, parks: bool = True) -> None:
        """Hold these blocks once less. The last of a chain becomes the least recently used of them.

        What nobody holds any more is not worth a copy in host memory unless it `parks`.
        """
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            assert block.references > 0, f"block {block_id} is released and nobody holds it"
            block.references -= 1
            self._references -= 1
            if block.references == 0:
                block.parks = parks
                self._put_back(block)

    def spill(self, block_ids: Sequence[int]) -> list[int]:
        """Exchange holds of blocks for copies of them in host memory, nobody else's; return the slots.

        They are to be given back (`host.give_back`). Raises OutOfSlots.
        """
        slots = []
        for block_id in block_ids:
            slot, lost = self.host.lend(block_id)
            self._note_lost(lost)
            slots.append(slot)
        self.release(block_ids, parks=False)
        return slots

    def save_tail(self, block_id: int, tail_hash: BlockHash, parent_hash: BlockHash | None, depth: int) -> bool:
        """Keep what is in a held, unfilled block in the host tier, behind `parent_hash`; False when it cannot be.

        It is kept for as long as its chain and its use allow, and known to `recall_tail` alone.
        """
        if self.host.capacity == 0 or (parent_hash is not None and parent_hash not in self._by_hash):
            return False
        if tail_hash in self.host:
            self.host.touch([tail_hash])
        else:
            self._note_lost(self.host.park(block_id, tail_hash, parent_hash, depth, is_tail=True))
        return True

    def recall_tail(self, tail_hash: BlockHash) -> int | None:
        """Hold a block with what was saved, and forget the saved one; None when it is gone. Needs a block's room."""
        if tail_hash not in self.host:
            return None
        parked = self.host.lift(tail_hash)
        (block_id,) = self.allocate(1)
        self.host.land(parked, block_id)
        return block_id

    def forget_tail(self, tail_hash: BlockHash) -> None:
        """Let go of what was saved, if it is still there."""
        if tail_hash in self.host:
            self.host.discard(tail_hash)

    def offload(self, most: int, keep_free: int) -> int:
        """Move up to `most` idle cached blocks to the host tier, while it has room, until `keep_free` blocks are free.

        Those that are promised do not count as free. Returns how many came free; the least recently used chain goes
        first, from its leaf.
        """
        before = len(self._free)
        while (
            len(self._free) - before < most
            and len(self._free) - self._reserved < keep_free
            and self._cached
            and self.host.num_parked < self.host.capacity
        ):
            self._evict()
        return len(self._free) - before

    def take_moves(self) -> tuple[Move, ...]:
        """Return the copies to make, in their order; whoever asks makes them before anybody touches the blocks."""
        return self._moves.take()

    def drain_events(self) -> tuple[tuple[CachedBlock, ...], tuple[CachedBlock, ...]]:
        """Return (stored, evicted) since the last call: what is in another tier than was told, and what is in none."""
        events, self._events = self._events, {}
        stored, evicted = [], []
        for block_hash, (told, depth) in events.items():
            tier = self._tier(block_hash)
            if tier is None and told is not None:
                evicted.append(CachedBlock(block_hash=block_hash, depth=depth, tier=told))
            elif tier is not None and tier != told:
                stored.append(CachedBlock(block_hash=block_hash, depth=depth, tier=tier))
        return tuple(stored), tuple(evicted)

    def cached_chain(self) -> tuple[CachedBlock, ...]:
        """Return everything that the cache knows, parents before children."""
        known = (self._blocks[block_id] for block_id in self._by_hash.values())
        found = [CachedBlock(block_hash=b.block_hash, depth=b.depth) for b in known if b.block_hash is not None]
        found += [
            CachedBlock(block_hash=p.block_hash, depth=p.depth, tier=HOST) for p in self.host.parked() if not p.is_tail
        ]
        return tuple(sorted(found, key=lambda block: block.depth))

    def num_orphaned(self, tables: Sequence[Sequence[int]]) -> int:
        """Return how many held blocks the block tables of all live sequences do not account for."""
        if self._references == sum(len(table) for table in tables) + len(self._pinned):
            return 0  # asked after every step: no look at each block while the totals agree
        claims = Counter(block_id for table in (*tables, self._pinned) for block_id in table)
        return sum(block.references > claims[block.block_id] for block in self._blocks)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a block is free and cached"
        for block in self._blocks:
            where = (block.block_id in free, block.block_id in cached, block.references > 0)
            assert sum(where) == 1, f"block {block.block_id} is in {sum(where)} of free, cached, held"
            assert block.references >= 0
            if block.block_hash is None:
                assert block.block_id not in cached, f"block {block.block_id} is cached without a hash"
                assert not block.children, f"unregistered block {block.block_id} has children"
                continue
            assert block.block_id not in free, f"registered block {block.block_id} is free"
            assert self._by_hash[block.block_hash] == block.block_id
            if block.depth:
                assert block.parent is not None, f"block {block.block_id} lost its parent"
                assert block.block_id in self._blocks[block.parent].children
                assert self._blocks[block.parent].block_hash is not None, "a chain is cached without its beginning"
                assert self._blocks[block.parent].depth == block.depth - 1
        for block_id in self._pinned:
            assert self._blocks[block_id].references > 0, f"pinned block {block_id} is held by nobody"
            assert self._blocks[block_id].block_hash is not None, f"pinned block {block_id} caches nothing"
        assert len(self._by_hash) == sum(block.block_hash is not None for block in self._blocks)
        assert self._references == sum(block.references for block in self._blocks)
        assert 0 <= self._reserved <= len(free) + len(cached), "more is promised than there is"
        self.host.check()
        for parked in self.host.parked():
            assert parked.block_hash not in self._by_hash, "a block is cached in both tiers"
            parent = parked.parent_hash
            assert parent is None or self._tier(parent) is not None, "the host tier has a chain without its beginning"
            assert not (parked.is_tail and self.host.is_followed(parked.block_hash)), "something follows a tail"

    def _take(self) -> int:
        if not self._free:
            self._evict()
        block_id = self._free.pop()
        self._blocks[block_id].references = 1
        self._references += 1
        return block_id

    def _put_back(self, block: Block) -> None:
        if block.block_hash is None:
            self._free.append(block.block_id)
        else:
            self._cached[block.block_id] = None

    def _evict(self) -> None:
        # From the least recently used block down to a leaf, so that as little as possible of its chain is lost.
        block = self._blocks[next(iter(self._cached))]
        while child := next((c for c in block.children if self._blocks[c].references == 0), None):
            block = self._blocks[child]
        self._forget(block)

    def _bring_up(self, block_hash: BlockHash) -> int:
        parked = self.host.lift(block_hash)
        self._note(block_hash, parked.depth, HOST)
        (block_id,) = self.allocate(1)
        self.host.land(parked, block_id)
        known = self.register(block_id, block_hash, parked.parent_hash, parked.depth)
        assert known, "a chain comes up from its beginning"
        return block_id

    def _tier(self, block_hash: BlockHash) -> int | None:
        if block_hash in self._by_hash:
            return POOL
        return HOST if block_hash in self.host else None

    def _forget(self, block: Block) -> None:
        # The block itself may go to the host tier. What follows it in the pool is forgotten with it, held blocks
        # included, and with those what follows them in the host tier: what is known of a chain is a prefix.
        # A block that others' parked ones follow goes there in any case: they would be lost with it.
        assert block.block_hash is not None
        parks = self.host.capacity > 0 and (block.parks or self.host.is_followed(block.block_hash))
        parent_hash = None if block.parent is None else self._blocks[block.parent].block_hash
        if block.parent is not None:
            self._blocks[block.parent].children.discard(block.block_id)
        pending = [block]
        while pending:
            gone = pending.pop()
            pending.extend(self._blocks[child] for child in gone.children)
            assert gone.block_hash is not None
            self._note(gone.block_hash, gone.depth, POOL)
            del self._by_hash[gone.block_hash]
            if gone is block and parks:
                lost = self.host.park(gone.block_id, gone.block_hash, parent_hash, gone.depth)
            else:
                lost = self.host.drop_after(gone.block_hash)
            self._note_lost(lost)
            gone.block_hash, gone.parent, gone.depth = None, None, 0
            gone.children.clear()
            if gone.references == 0:
                del self._cached[gone.block_id]
                self._free.append(gone.block_id)

    def _note_lost(self, lost: Iterable[Parked]) -> None:
        for parked in lost:
            if not parked.is_tail:
                self._note(parked.block_hash, parked.depth, HOST)

    def _note(self, block_hash: BlockHash, depth: int, before: int | None) -> None:
        """Remember which tier a block was in before its first change since events were drained."""
        self._events.setdefault(block_hash, (before, depth))
