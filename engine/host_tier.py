"""The cache's second tier, as bookkeeping: which evicted blocks lie in which slot of host memory, and what to copy.

Knows hashes, slots and the pool's block ids; knows no bytes and not what the pool caches. The unfilled last block of a
preempted sequence lies here like any other, by the hash of what it holds; it is a leaf that no cache lookup asks for.
Slots are lent to a sequence that spills: what lies there is its own, and known to it alone.
Copies are asked for in an order that must be kept (`Moves`), so that a slot may be taken again at once.
What an earlier engine kept there is taken over, as far as its chains are whole, and believed when it was read.
Invariants, with those of the pool: a slot is free, lent or holds one block; a block's parent is in the pool or here, so
what both hold of a chain is a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol

from pagewire.core.block_hash import BlockHash
from pagewire.engine.eviction_order import EvictionOrder
from pagewire.engine.moves import Moves, Way
from pagewire.engine.owner import Owner
from pagewire.engine.parked import Parked


class OutOfSlots(Exception):
    """Host memory has no slot to lend; nothing was taken."""


class Kept(Protocol):
    """What lies in the slots since before this tier began: an earlier engine's blocks, where memory outlives it."""

    def blocks(self) -> Sequence[Parked]:
        """Return what is said to lie there, each hash once, the least recently parked first."""
        ...

    def num_intact(self, parked: Sequence[Parked]) -> int:
        """Return how many of these blocks, from the first, are what they are said to be, by reading them."""
        ...


class HostTier:
    """`num_slots` places for blocks; the chain that is first in order to go goes from its leaf.

    One slot is kept for a block on its way up while another goes down, so that bringing one up costs none.
    """

    def __init__(self, num_slots: int, moves: Moves, kept: Kept | None = None) -> None:
        self.num_slots = num_slots
        self._kept = kept
        self._unproven: set[BlockHash] = set()  # of what was kept, what nobody has read yet
        self._lent: set[int] = set()
        self._free = list(range(num_slots - 1, -1, -1))
        self._parked: dict[BlockHash, Parked] = {}
        self._order: EvictionOrder[BlockHash] = EvictionOrder(num_slots)
        self._children: dict[BlockHash, set[BlockHash]] = {}  # of blocks here and of blocks in the pool
        self._moves = moves
        if kept is not None:
            self._take_over(kept.blocks())

    @property
    def capacity(self) -> int:
        """Slots that blocks may be parked in."""
        return max(0, self.num_slots - len(self._lent) - 1)

    @property
    def num_lent(self) -> int:
        """Slots that a sequence spilled blocks to."""
        return len(self._lent)

    @property
    def num_parked(self) -> int:
        """Slots that hold a block."""
        return len(self._parked)

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._parked

    def parked(self) -> Iterable[Parked]:
        """Return all blocks that are here."""
        return self._parked.values()

    def first_damaged(self, hashes: Sequence[BlockHash]) -> BlockHash | None:
        """Return the first block of a chain that is not what it is said to be; None when all that are here are."""
        if not self._unproven:
            return None
        asked = [self._parked[each] for each in takewhile(self._parked.__contains__, hashes) if each in self._unproven]
        if not asked:
            return None
        assert self._kept is not None
        num_intact = self._kept.num_intact(asked)
        self._unproven.difference_update(parked.block_hash for parked in asked[:num_intact])
        return asked[num_intact].block_hash if num_intact < len(asked) else None

    def touch(self, hashes: Sequence[BlockHash]) -> None:
        """Make a chain the most recently used, its last block the least recently used of it."""
        for block_hash in reversed(hashes):
            if block_hash in self._parked:
                self._order.touch(block_hash)

    def is_followed(self, block_hash: BlockHash) -> bool:
        """Return whether something here comes directly after a block."""
        return block_hash in self._children

    def park(
        self,
        block_id: int,
        block_hash: BlockHash,
        parent_hash: BlockHash | None,
        depth: int,
        *,
        is_tail: bool = False,
        owner: Owner | None = None,
    ) -> tuple[Parked, ...]:
        """Take over what a block of the pool caches; return what had to go to make room. Needs a capacity at all."""
        assert block_hash not in self._parked, "a block is parked twice"
        gone = () if len(self._parked) < self.capacity else (self._drop(self._least_useful()),)
        parked = Parked(self._free.pop(), block_hash, parent_hash, depth, is_tail, owner)
        self._enter(parked)
        self._moves.ask(block_id, parked.slot, Way.OUT, None if is_tail else parked)
        return gone

    def lend(self, block_id: int) -> tuple[int, tuple[Parked, ...]]:
        """Copy a block of the pool to a slot that is its holder's until given back; return it, and what had to go.

        Raises OutOfSlots when all are lent.
        """
        if len(self._lent) == self.num_slots:
            raise OutOfSlots(f"all {self.num_slots} slots of host memory are lent")
        slot = self._free.pop()
        self._lent.add(slot)
        gone: tuple[Parked, ...] = ()
        while len(self._parked) > self.capacity:
            gone += (self._drop(self._least_useful()),)
        self._moves.ask(block_id, slot, Way.OUT)
        return slot, gone

    def give_back(self, slots: Sequence[int]) -> None:
        """End the loan of slots."""
        for slot in slots:
            self._lent.remove(slot)
            self._free.append(slot)

    def copy(self, block_hash: BlockHash, block_id: int) -> bool:
        """Have a block copied into the pool's `block_id`, and keep it; False when it is not here (any more)."""
        parked = self._parked.get(block_hash)
        if parked is not None:
            self._moves.ask(parked.slot, block_id, Way.IN)
        return parked is not None

    def lift(self, block_hash: BlockHash) -> Parked:
        """Forget a block, not what follows it; its slot keeps the bytes until `land`."""
        return self._remove(block_hash)

    def land(self, parked: Parked, block_id: int) -> None:
        """Have a lifted block copied into the pool's `block_id`."""
        self._moves.ask(parked.slot, block_id, Way.IN)
        self._free.append(parked.slot)

    def discard(self, block_hash: BlockHash) -> Parked:
        """Forget a block, not what follows it, and return it: the pool has it now, or nobody wants it."""
        return self._drop(block_hash)

    def drop_after(self, block_hash: BlockHash) -> tuple[Parked, ...]:
        """Forget everything that follows a block in any chain, and return it: the block is gone for good."""
        gone: list[Parked] = []
        pending = list(self._children.get(block_hash, ()))
        while pending:
            follower = pending.pop()
            pending.extend(self._children.get(follower, ()))
            gone.append(self._drop(follower))
        return tuple(gone)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        used = [parked.slot for parked in self._parked.values()]
        placed = sorted([*used, *self._free, *self._lent])
        assert placed == list(range(self.num_slots)), "a slot is lost, or in two places"
        assert len(used) <= self.capacity, "no slot is left for a block on its way up"
        assert set(self._order) == set(self._parked)
        assert self._unproven <= set(self._parked)
        self._order.check()
        for block_hash, parked in self._parked.items():
            assert parked.block_hash == block_hash
            assert (parked.parent_hash is None) == (parked.depth == 0)
            assert parked.parent_hash is None or block_hash in self._children[parked.parent_hash]
        assert sum(map(len, self._children.values())) == sum(p.depth > 0 for p in self._parked.values())
        assert all(self._children.values()), "an empty set of children is kept"

    def _take_over(self, kept: Sequence[Parked]) -> None:
        # A chain whose beginning was in the pool when the engine ended without a word is lost: all of it is to be here.
        depths: dict[BlockHash | None, int] = {None: -1}
        for parked in sorted(kept, key=lambda parked: parked.depth):
            if depths.get(parked.parent_hash) == parked.depth - 1:
                depths[parked.block_hash] = parked.depth
        for parked in kept:
            if parked.block_hash in depths:
                self._enter(parked)
                self._unproven.add(parked.block_hash)
        used = {parked.slot for parked in self._parked.values()}
        self._free = [slot for slot in self._free if slot not in used]
        while len(self._parked) > self.capacity:
            self._drop(self._least_useful())

    def _enter(self, parked: Parked) -> None:
        self._parked[parked.block_hash] = parked
        self._order.add(parked.block_hash, parked.owner)
        if parked.parent_hash is not None:
            self._children.setdefault(parked.parent_hash, set()).add(parked.block_hash)

    def _least_useful(self) -> BlockHash:
        # From the first in order down to a leaf, as in the pool.
        block_hash = self._order.first()
        while children := self._children.get(block_hash):
            block_hash = next(iter(children))
        return block_hash

    def _drop(self, block_hash: BlockHash) -> Parked:
        parked = self._remove(block_hash)
        self._free.append(parked.slot)
        return parked

    def _remove(self, block_hash: BlockHash) -> Parked:
        parked = self._parked.pop(block_hash)
        self._unproven.discard(block_hash)
        self._order.remove(block_hash)
        if parked.parent_hash is not None:
            siblings = self._children[parked.parent_hash]
            siblings.discard(block_hash)
            if not siblings:
                del self._children[parked.parent_hash]
        return parked
