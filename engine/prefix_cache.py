"""Which block stands for which piece of which chain, in the pool and behind it in host memory, and which goes first.

What nobody holds is idle: it may be evicted, from the leaf of a chain, and may then go on in the host tier. Knows
blocks, hashes and owners; not who holds a block, nor how many are promised. Invariants, with those of the pool: what
the cache has of a chain is a prefix of it, which goes on in the host tier; nothing is in both; what is evicted is idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagewire.core.block_hash import BlockHash
from pagewire.core.cache_quota import CacheQuota
from pagewire.core.engine_messages import CachedBlock
from pagewire.engine.block import Block
from pagewire.engine.eviction_order import EvictionOrder
from pagewire.engine.host_tier import HostTier, Kept
from pagewire.engine.moves import Moves
from pagewire.engine.owner import Owner, Owners
from pagewire.engine.parked import Parked
from pagewire.engine.tier_news import TierNews

POOL, HOST = 0, 1  # tiers


class PrefixCache:
    """The registered ones of `blocks`, and the host tier behind them; of each chain it tells every `news_stride`-th.

    One that is not `is_on` takes in nothing, so that nothing is ever found.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        num_host_slots: int,
        moves: Moves,
        news_stride: int,
        *,
        is_on: bool,
        kept: Kept | None = None,
    ) -> None:
        self.host = HostTier(num_host_slots, moves, kept)
        self.is_on = is_on
        self.num_evicted = 0  # blocks that left the pool to make room, and of those what was over its owner's quota
        self.num_evicted_over = 0
        self._blocks = blocks
        self._by_hash: dict[BlockHash, int] = {}
        self._idle: EvictionOrder[int] = EvictionOrder(len(blocks))
        self._owners = Owners()
        self._news = TierNews(news_stride)

    @property
    def num_idle(self) -> int:
        """Registered blocks that nobody holds."""
        return len(self._idle)

    @property
    def num_over(self) -> int:
        """Owners that have more idle blocks in the pool than their quota."""
        return self._idle.num_over

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Return the blocks of the pool that stand for the longest prefix of a chain."""
        found = []
        for block_hash in hashes:
            block_id = self._by_hash.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def register(
        self, block_ids: Sequence[int], hashes: Sequence[BlockHash], first: int, quota: CacheQuota | None
    ) -> int:
        """Let held blocks stand for the pieces of a chain from `first` on, as `BlockPool.register` says."""
        if not self.is_on:
            return len(hashes)
        by_hash, host, note, owner = self._by_hash, self.host, self._news.note, self._owners.of(quota)
        parent = by_hash.get(hashes[first - 1]) if first else None
        for depth in range(first, len(hashes)):
            block_hash, block = hashes[depth], self._blocks[block_ids[depth]]
            assert block.references > 0, f"block {block.block_id} is registered and nobody holds it"
            known = by_hash.get(block_hash)
            if known is not None:
                parent = known
                continue
            if (depth and parent is None) or block.block_hash is not None:
                return depth
            if block_hash in host:  # it was computed once more
                note(block_hash, depth, HOST)
                host.discard(block_hash)
            else:
                note(block_hash, depth, None)
            self._enter(block, block_hash, parent, depth, owner)
            parent = block.block_id
        return len(hashes)

    def prove(self, hashes: Sequence[BlockHash]) -> None:
        """Have what an earlier engine left of a chain in the host tier read; from where it is damaged on it is lost."""
        damaged = self.host.first_damaged(hashes)
        if damaged is not None:
            self.lost((*self.host.drop_after(damaged), self.host.discard(damaged)))

    def bring_up(self, parked: Parked, block_id: int) -> None:
        """Let a held block stand for what was lifted out of the host tier, and have the bytes copied there."""
        self._news.note(parked.block_hash, parked.depth, HOST)
        self.host.land(parked, block_id)
        parent = None if parked.parent_hash is None else self._by_hash[parked.parent_hash]
        self._enter(self._blocks[block_id], parked.block_hash, parent, parked.depth, parked.owner)

    def put_back(self, block: Block) -> None:
        """Nobody holds a registered block any more: it is the most recently used of those."""
        self._idle.add(block.block_id, block.owner)

    def take_out(self, block_id: int) -> None:
        """Somebody holds a block, which may have been idle."""
        if block_id in self._idle:
            self._idle.remove(block_id)

    def evict(self, num_blocks: int) -> list[int]:
        """Forget idle blocks, and what follows them, until so many stand for nothing and are nobody's; return those.

        The least useful go: each time from the first in order down to a leaf, so that as little as possible of its
        chain is lost. There must be enough idle blocks.
        """
        idle, blocks, freed = self._idle, self._blocks, list[int]()
        while len(freed) < num_blocks:
            self.num_evicted += 1
            self.num_evicted_over += idle.num_over > 0
            block = blocks[idle.first()]
            while block.children:
                child = next((c for c in block.children if blocks[c].references == 0), None)
                if child is None:
                    break
                block = blocks[child]
            self._forget(block, freed)
        return freed

    def save_tail(self, block_id: int, tail_hash: BlockHash, parent_hash: BlockHash | None, depth: int) -> bool:
        """Keep what is in a held, unfilled block in the host tier, behind `parent_hash`; False when it cannot be.

        It is kept for as long as its chain and its use allow, and known to `BlockPool.recall_tail` alone.
        """
        if self.host.capacity == 0 or (parent_hash is not None and parent_hash not in self._by_hash):
            return False
        if tail_hash in self.host:
            self.host.touch([tail_hash])
        else:
            self.lost(self.host.park(block_id, tail_hash, parent_hash, depth, is_tail=True))
        return True

    def forget_tail(self, tail_hash: BlockHash) -> None:
        """Let go of what was saved, if it is still there."""
        if tail_hash in self.host:
            self.host.discard(tail_hash)

    def lost(self, parked: Iterable[Parked]) -> None:
        """Note what had to leave the host tier."""
        for each in parked:
            if not each.is_tail:
                self._news.note(each.block_hash, each.depth, HOST)

    def drain_events(self) -> tuple[tuple[CachedBlock, ...], tuple[CachedBlock, ...]]:
        """Return (stored, evicted) since the last call: what is in another tier than was told, and what is in none."""
        return self._news.take(self.tier)

    def tier(self, block_hash: BlockHash) -> int | None:
        """Return where a piece of a chain is, None for nowhere."""
        if block_hash in self._by_hash:
            return POOL
        return HOST if block_hash in self.host else None

    def chains(self) -> tuple[CachedBlock, ...]:
        """Return everything that the cache knows, parents before children."""
        known = (self._blocks[block_id] for block_id in self._by_hash.values())
        found = [CachedBlock(block_hash=b.block_hash, depth=b.depth) for b in known if b.block_hash is not None]
        found += [
            CachedBlock(block_hash=p.block_hash, depth=p.depth, tier=HOST) for p in self.host.parked() if not p.is_tail
        ]
        return tuple(sorted(found, key=lambda block: block.depth))

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for block in self._blocks:
            is_idle = block.block_hash is not None and block.references == 0
            assert (block.block_id in self._idle) == is_idle, f"block {block.block_id} is idle or is not"
            if block.block_hash is None:
                assert not block.children, f"unregistered block {block.block_id} has children"
                assert block.owner is None, f"unregistered block {block.block_id} has an owner"
                continue
            assert self._by_hash[block.block_hash] == block.block_id
            if block.depth:
                assert block.parent is not None, f"block {block.block_id} lost its parent"
                assert block.block_id in self._blocks[block.parent].children
                assert self._blocks[block.parent].block_hash is not None, "a chain is cached without its beginning"
                assert self._blocks[block.parent].depth == block.depth - 1
        assert len(self._by_hash) == sum(block.block_hash is not None for block in self._blocks)
        self._idle.check()
        self.host.check()
        for parked in self.host.parked():
            assert parked.block_hash not in self._by_hash, "a block is cached in both tiers"
            parent = parked.parent_hash
            assert parent is None or self.tier(parent) is not None, "the host tier has a chain without its beginning"
            assert not (parked.is_tail and self.host.is_followed(parked.block_hash)), "something follows a tail"

    def _enter(self, block: Block, block_hash: BlockHash, parent: int | None, depth: int, owner: Owner | None) -> None:
        block.block_hash, block.parent, block.depth, block.owner = block_hash, parent, depth, owner
        self._by_hash[block_hash] = block.block_id
        if parent is not None:
            self._blocks[parent].children.add(block.block_id)

    def _forget(self, block: Block, freed: list[int]) -> None:
        # The block itself may go to the host tier. What follows it in the pool is forgotten with it, held blocks
        # included, and with those what follows them in the host tier: what is known of a chain is a prefix.
        # A block that others' parked ones follow goes there in any case: they would be lost with it.
        assert block.block_hash is not None
        has_host = self.host.capacity > 0
        parks = has_host and (block.parks or self.host.is_followed(block.block_hash))
        parent = None if block.parent is None else self._blocks[block.parent]
        if parent is not None:
            parent.children.discard(block.block_id)
        pending = [block]
        while pending:
            gone = pending.pop()
            if gone.children:
                pending.extend(self._blocks[child] for child in gone.children)
                gone.children.clear()
            assert gone.block_hash is not None
            self._news.note(gone.block_hash, gone.depth, POOL)
            del self._by_hash[gone.block_hash]
            if gone is block and parks:
                parent_hash = None if parent is None else parent.block_hash
                self.lost(self.host.park(gone.block_id, gone.block_hash, parent_hash, gone.depth, owner=gone.owner))
            elif has_host:
                self.lost(self.host.drop_after(gone.block_hash))
            gone.block_hash, gone.parent, gone.depth, gone.owner = None, None, 0, None
            if gone.references == 0:
                self._idle.remove(gone.block_id)
                freed.append(gone.block_id)
