"""The cache's second tier, as bookkeeping: which evicted blocks lie in which slot of host memory, and what to copy.

Knows hashes, slots and the pool's block ids; knows no bytes and not what the pool caches. The unfilled last block of a
preempted sequence lies here like any other, by the hash of what it holds; it is a leaf that no cache lookup asks for.
Slots are lent to a sequence that spills: what lies there is its own, and known to it alone.
Copies are asked for in an order that must be kept (`Moves`), so that a slot may be taken again at once.
Invariants, with those of the pool: a slot is free, lent or holds one block; a block's parent is in the pool or here, so
what both hold of a chain is a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash
from pagewire.engine.eviction_order import EvictionOrder
from pagewire.engine.moves import Moves, Way
from pagewire.engine.owner import Owner


class OutOfSlots(Exception):
    """Host memory has no slot to lend; nothing was taken."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A block in the host tier: `depth` is its place in the chain; a `tail` is not full, and its sequence's own.

    Its `owner` is whose quota it counts against.
    """

    slot: int
    block_hash: BlockHash
    parent_hash: BlockHash | None
    depth: int
    is_tail: bool
    owner: Owner | None


class HostTier:
    """`num_slots` places for blocks; the chain that is first in order to go goes from its leaf.

    One slot is kept for a block on its way up while another goes down, so that bringing one up costs none.
    """

    def __init__(self, num_slots: int, moves: Moves) -> None:
        self.num_slots = num_slots
        self._lent: set[int] = set()
        self._free = list(range(num_slots - 1, -1, -1))
        self._parked: dict[BlockHash, Parked] = {}
        self._order: EvictionOrder[BlockHash] = EvictionOrder(num_slots)
        self._children: dict[BlockHash, set[BlockHash]] = {}  # of blocks here and of blocks in the pool
        self._moves = moves

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
        self._parked[block_hash] = parked
        self._order.add(block_hash, owner)
        if parent_hash is not None:
            self._children.setdefault(parent_hash, set()).add(block_hash)
        self._moves.ask(block_id, parked.slot, Way.OUT)
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

    def discard(self, block_hash: BlockHash) -> None:
        """Forget a block, not what follows it: the pool has it now."""
        self._drop(block_hash)

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
        self._order.check()
        for block_hash, parked in self._parked.items():
            assert parked.block_hash == block_hash
            assert (parked.parent_hash is None) == (parked.depth == 0)
            assert parked.parent_hash is None or block_hash in self._children[parked.parent_hash]
        assert sum(map(len, self._children.values())) == sum(p.depth > 0 for p in self._parked.values())
        assert all(self._children.values()), "an empty set of children is kept"

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
        self._order.remove(block_hash)
        if parked.parent_hash is not None:
            siblings = self._children[parked.parent_hash]
            siblings.discard(block_hash)
            if not siblings:
                del self._children[parked.parent_hash]
        return parked
