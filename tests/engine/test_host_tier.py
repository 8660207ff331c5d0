"""The cache over two tiers, against dictionaries that say what every block and slot must contain.

Moves are carried out on dictionaries, in order, as the mover does on tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pytest
import torch
from engine_runs import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagewire.core.block_hash import BlockHash, chain
from pagewire.engine.block_mover import BlockMover
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.host_tier import HostTier, OutOfSlots
from pagewire.engine.moves import Move, Moves, Way
from pagewire.engine.parked import Parked
from pagewire.engine.prefix_cache import HOST, POOL
from pagewire.kernels.torch_backend import TorchBackend

NUM_BLOCKS = 6
NUM_SLOTS = 5  # one of them for swaps
FOREIGN = BlockHash(b"somebody else's")
DAMAGED = BlockHash(b"what a disk made of it")


def hashes(*tokens: int) -> list[BlockHash]:
    return chain(ROOT, tokens, 1)


class Left:
    """Slots that outlive a pool, with what was said to lie in them; what is damaged there shows when it is read."""

    def __init__(self) -> None:
        self.slots: dict[int, BlockHash] = {}
        self.sealed: dict[int, Parked] = {}  # the least recently sealed first

    def seal(self, slot: int, parked: Parked | None) -> None:
        self.sealed.pop(slot, None)
        if parked is not None:
            self.sealed[slot] = parked

    def blocks(self) -> Sequence[Parked]:
        latest = {parked.block_hash: parked for parked in self.sealed.values()}
        return [parked for parked in self.sealed.values() if latest[parked.block_hash] is parked]

    def num_intact(self, parked: Sequence[Parked]) -> int:
        return next((i for i, one in enumerate(parked) if self.slots[one.slot] != one.block_hash), len(parked))


class Memory:
    """What is in each block and slot, by the name of what was computed there; slots may be kept from a pool before."""

    def __init__(self, pool: BlockPool, kept: Left | None = None) -> None:
        self.pool = pool
        self.blocks: dict[int, BlockHash] = {}
        self.left = kept or Left()
        self.slots = self.left.slots

    def settle(self) -> None:
        for source, target, way, parked in self.pool.take_moves():
            if way is Way.OUT:
                self.slots[target] = self.blocks[source]
                self.left.seal(target, parked)
            else:
                assert way is Way.IN
                self.blocks[target] = self.slots[source]

    def run(self, names: list[BlockHash]) -> tuple[list[int], int]:
        """Hold a chain as a sequence does, computing what is not cached; return its table and how much was cached."""
        table = self.pool.claim(names)
        cached = len(table)
        table = table + self.pool.allocate(len(names) - cached)
        self.settle()
        assert [self.blocks[block_id] for block_id in table[:cached]] == names[:cached]
        self.compute(table, names)
        return table, cached

    def compute(self, table: list[int], names: list[BlockHash]) -> None:
        self.blocks.update(zip(table, names, strict=True))
        self.pool.register(table, names)

    def check(self) -> dict[BlockHash, int]:
        """Compare every cached block with its name; return the tier of each."""
        self.pool.check()
        found = {}
        for block in self.pool.cached_chain():
            found[block.block_hash] = block.tier
            if block.tier == POOL:
                assert self.blocks[self.pool.match([block.block_hash])[0]] == block.block_hash
        for parked in self.pool.host.parked():
            assert self.slots[parked.slot] in {parked.block_hash, DAMAGED}
        return found


class TierMachine(RuleBasedStateMachine):
    """Chains are run, computed twice, fetched by peers; others write into what they were given.

    Pools end, with a word or without, and the next one has their slots, of which some are damaged meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, NUM_SLOTS)
        self.memory = Memory(self.pool)
        self.tables: list[list[int]] = []
        self.told: dict[BlockHash, int] = {}  # as a listener of the events would know

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def run(self, tokens: list[int]) -> None:
        names = hashes(*tokens)
        hits = self.pool.match(names)
        if self.pool.num_unreferenced(hits) + len(names) - len(hits) > self.pool.num_available:
            return
        known = next((i for i, name in enumerate(names) if name not in self.told or self.is_damaged(name)), len(names))
        table, cached = self.memory.run(names)
        assert cached == known, "bringing a chain up costs none of it"
        self.tables.append(table)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def compute_twice(self, tokens: list[int]) -> None:
        names = hashes(*tokens)
        if len(names) <= self.pool.num_available:
            table = self.pool.allocate(len(names))
            self.memory.settle()
            self.memory.compute(table, names)
            self.tables.append(table)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5), start=st.integers(0, 3))
    def fetch(self, tokens: list[int], start: int) -> None:
        names = hashes(*tokens)[start:]
        found = self.pool.match(names)
        if self.pool.num_unreferenced(found) > self.pool.num_available:
            return
        self.pool.share(found)
        table = found + self.pool.copy_up(names[len(found) :])
        self.memory.settle()
        assert [self.memory.blocks[block_id] for block_id in table] == names[: len(table)]
        self.tables.append(table)

    @rule(count=st.integers(1, 4), reserved=st.booleans())
    def bind(self, count: int, reserved: bool) -> None:
        if count > self.pool.num_available:
            return
        if reserved:
            self.pool.reserve(count)
            table = self.pool.allocate_reserved(count)
        else:
            table = self.pool.allocate(count)
        self.memory.settle()
        self.memory.blocks.update(dict.fromkeys(table, FOREIGN))
        self.tables.append(table)

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        if self.tables:
            self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @rule(data=st.data(), has_notice=st.booleans())
    def restart(self, data: st.DataObject, has_notice: bool) -> None:
        if has_notice:
            for table in self.tables:
                self.pool.release(table)
            known = {name for name in self.told if not self.is_damaged(name)}
            self.pool.park_all()
            self.memory.settle()
        left = self.memory.left
        self.pool = BlockPool(NUM_BLOCKS, NUM_SLOTS, kept=left)
        if has_notice and len(self.told) < NUM_SLOTS:
            assert {parked.block_hash for parked in self.pool.host.parked()} >= known, "there was room for all"
        self.memory = Memory(self.pool, left)
        self.tables.clear()
        self.told = {block.block_hash: block.tier for block in self.pool.cached_chain()}
        for slot in data.draw(st.sets(st.sampled_from(sorted(left.slots))) if left.slots else st.just(set())):
            left.slots[slot] = DAMAGED

    def is_damaged(self, name: BlockHash) -> bool:
        parked = next((parked for parked in self.pool.host.parked() if parked.block_hash == name), None)
        return parked is not None and self.memory.slots[parked.slot] == DAMAGED

    @invariant()
    def every_name_is_where_it_is_said_to_be(self) -> None:
        found = self.memory.check()
        stored, evicted = self.pool.drain_events()
        for block in evicted:
            assert self.told.pop(block.block_hash) == block.tier
        for block in stored:
            assert self.told.get(block.block_hash) != block.tier
            self.told[block.block_hash] = block.tier
        assert self.told == found
        assert self.pool.host.num_parked == sum(tier == HOST for tier in found.values()) < NUM_SLOTS
        assert self.pool.num_orphaned(self.tables) == 0


TierMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
TestTwoTiers = TierMachine.TestCase


@settings(max_examples=200, deadline=None)
@given(uses=st.lists(st.integers(0, 14), max_size=60))
def test_two_tiers_are_one_least_recently_used_cache(uses: list[int]) -> None:
    pool = BlockPool(NUM_BLOCKS, NUM_SLOTS)
    memory, naive = Memory(pool), OrderedDict[BlockHash, None]()
    for token in uses:
        (name,) = hashes(token)
        table, cached = memory.run([name])
        assert bool(cached) == (name in naive)
        pool.release(table)
        naive[name] = None
        naive.move_to_end(name)
        if len(naive) > NUM_BLOCKS + NUM_SLOTS - 1:
            naive.popitem(last=False)
        recent = list(naive)
        expected = dict.fromkeys(recent[:-NUM_BLOCKS], HOST) | dict.fromkeys(recent[-NUM_BLOCKS:], POOL)
        assert memory.check() == expected


def test_a_chain_leaves_both_tiers_from_its_end() -> None:
    pool = BlockPool(4, 4)
    memory = Memory(pool)
    old = hashes(1, 2, 3, 4)
    table, _ = memory.run(old)
    pool.release(table)
    held: list[int] = []
    for parked, left in ((1, 4), (2, 4), (3, 4), (3, 3)):
        held += pool.allocate(1)
        memory.settle()
        found = memory.check()
        assert (pool.host.num_parked, len(found)) == (parked, left)
        assert list(found) == old[:left]
    pool.release(held)
    table, cached = memory.run(old)
    assert cached == 3
    pool.release(table)


def test_what_is_kept_beyond_the_capacity_goes_least_recently_sealed_first_from_the_leaf() -> None:
    left, chain_of_two, others = Left(), hashes(1, 2), [hashes(token)[0] for token in (3, 4, 5)]
    for slot, (name, parent, depth) in enumerate(
        ((chain_of_two[0], None, 0), (chain_of_two[1], chain_of_two[0], 1), *((other, None, 0) for other in others))
    ):
        left.slots[slot] = name
        left.seal(slot, Parked(slot, name, parent, depth))
    tier = HostTier(NUM_SLOTS, Moves(), left)
    tier.check()
    assert {parked.block_hash for parked in tier.parked()} == {chain_of_two[0], *others}


def test_what_is_kept_is_read_once() -> None:
    left, asked = Left(), list[BlockHash]()
    names = hashes(1, 2, 3)
    for slot, name in enumerate(names):
        left.slots[slot] = name
        left.seal(slot, Parked(slot, name, names[slot - 1] if slot else None, slot))

    class Watched:
        def blocks(self) -> Sequence[Parked]:
            return left.blocks()

        def num_intact(self, parked: Sequence[Parked]) -> int:
            asked.extend(each.block_hash for each in parked)
            return left.num_intact(parked)

    tier = HostTier(NUM_SLOTS, Moves(), Watched())
    for most in (1, 3, 3):
        assert tier.first_damaged(names[:most]) is None
    assert asked == names


def test_moves_with_one_target_are_made_one_after_the_other() -> None:
    pool = torch.arange(8.0).view(4, 1, 2, 1, 1, 1).clone()
    mover = BlockMover([pool], 2, TorchBackend())
    before = pool.clone()
    mover.move([
        Move(0, 0, Way.OUT), Move(1, 1, Way.OUT), Move(2, 0, Way.OUT),  # slot 0 is taken again
        Move(0, 3, Way.IN), Move(1, 0, Way.IN), Move(1, 3, Way.IN),
    ])  # fmt: skip
    assert torch.equal(pool, before[[1, 1, 2, 1]])


def test_moves_within_the_pool_are_made_one_after_the_other() -> None:
    pool = torch.arange(8.0).view(4, 1, 2, 1, 1, 1).clone()
    before = pool.clone()
    moves = [Move(0, 1, Way.WITHIN), Move(2, 3, Way.WITHIN), Move(1, 2, Way.WITHIN), Move(3, 0, Way.WITHIN)]
    BlockMover([pool], 0, TorchBackend()).move(moves)
    assert torch.equal(pool, before[[2, 0, 0, 2]]), "1 was written before it was read, 2 read before it was written"


class LastFirst(TorchBackend):
    """Copies blocks in an order of its own, as a GPU does: whatever the caller must not count on."""

    def copy_blocks(self, pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for source, target in zip(sources.flip(0), targets.flip(0), strict=True):
            pool[target] = pool[source]


def test_a_block_that_was_copied_is_written_over_only_when_its_copy_is_made() -> None:
    """Two beams part, the one that was left with the block they shared gives it up, and it is taken for a copy."""
    pool = torch.arange(8.0).view(4, 1, 2, 1, 1, 1).clone()
    before = pool.clone()
    BlockMover([pool], 0, LastFirst()).move([Move(0, 1, Way.WITHIN), Move(2, 0, Way.WITHIN), Move(2, 3, Way.WITHIN)])
    assert torch.equal(pool, before[[2, 0, 2, 2]])


def test_a_shared_prefix_that_others_follow_in_host_memory_is_not_dropped_with_a_recompute() -> None:
    pool = BlockPool(3, 6)
    memory = Memory(pool)
    theirs, ours = hashes(1, 2, 3), hashes(1, 4, 5)
    table, _ = memory.run(theirs)
    pool.release(table)
    table, cached = memory.run(ours)  # evicts 2 and 3 of theirs
    assert (cached, pool.host.num_parked) == (1, 2)
    pool.release(table, parks=False)
    held = pool.allocate(3)
    memory.settle()
    assert set(memory.check()) == set(theirs), "4 and 5 were not worth keeping, 1 is the beginning of what was kept"
    pool.release(held)


@pytest.mark.parametrize("parked", [1, 2, 3])
def test_what_follows_a_held_block_that_is_forgotten_leaves_the_host_tier_too(parked: int) -> None:
    pool = BlockPool(3 + parked, 8)
    names = hashes(*range(2 + parked))
    theirs, ours = pool.allocate(1), pool.allocate(1)
    pool.register(theirs, names[:1])
    ours += pool.allocate(1 + parked)
    assert pool.register(ours, names) == len(names), "the first of them is theirs"
    pool.release(ours[2:])
    pool.release(pool.allocate(parked))  # all from names[2] on goes down
    assert {block.block_hash for block in pool.cached_chain() if block.tier == HOST} == {*names[2:]}
    pool.drain_events()
    pool.release(theirs)
    pool.allocate(1 + parked)  # theirs goes down, and names[1], which we hold, is known no more
    pool.check()
    assert [(block.block_hash, block.tier) for block in pool.cached_chain()] == [(names[0], HOST)]
    assert {block.block_hash for block in pool.drain_events()[1]} == {*names[1:]}


def test_what_a_peer_fetches_is_not_pushed_out_by_the_room_for_it() -> None:
    pool = BlockPool(2, 5)
    memory = Memory(pool)
    asked, newer, idle = hashes(1, 2), hashes(3, 4), hashes(5, 6)
    for names in (asked, newer):
        pool.release(memory.run(names)[0])
        held = pool.allocate(2)  # to the host tier with it
        memory.settle()
        pool.release(held)
    pool.release(memory.run(idle)[0])
    table = pool.copy_up(asked)
    memory.settle()
    assert [memory.blocks[block_id] for block_id in table] == asked
    assert {name for name, tier in memory.check().items() if tier == HOST} == {*asked, *idle}, "the newer went for it"
    pool.release(table)


def test_room_for_what_a_peer_fetches_may_cost_what_it_asked_for() -> None:
    pool = BlockPool(2, 4)
    memory = Memory(pool)
    asked, newer, idle = hashes(1, 2), hashes(3), hashes(4, 5)
    pool.release(memory.run(asked)[0])
    held = pool.allocate(2)
    memory.settle()
    pool.release(held)
    for names in (newer, idle):
        pool.release(memory.run(names)[0])
    assert pool.host.num_parked == pool.host.capacity == 3
    table = pool.copy_up(asked)
    memory.settle()
    assert [memory.blocks[block_id] for block_id in table] == asked[:1], "idle[0] went down, and the last asked for it"
    assert (pool.num_held, pool.num_free) == (1, 1)
    memory.check()


def test_what_nobody_has_costs_no_cached_block() -> None:
    pool = BlockPool(3, 4)
    memory = Memory(pool)
    names = hashes(1, 2, 3)
    pool.release(memory.run(names)[0])
    assert pool.copy_up(hashes(9)) == []
    assert memory.check() == dict.fromkeys(names, POOL)


def test_a_peer_is_given_what_there_is_room_for() -> None:
    pool = BlockPool(3, 4)
    memory = Memory(pool)
    names = hashes(1, 2, 3)
    pool.release(memory.run(names)[0])
    held = pool.allocate(3)
    memory.settle()
    assert pool.copy_up(names) == []
    pool.release(held[:1])
    assert pool.copy_up(hashes(9)) == [], "nobody has it"
    assert len(pool.copy_up(names)) == 1
    assert (pool.num_available, pool.num_held) == (0, 3)


def test_idle_blocks_go_down_until_so_many_are_free_that_nobody_was_promised() -> None:
    pool = BlockPool(6, 9)
    memory = Memory(pool)
    pool.release(memory.run(hashes(1, 2, 3, 4))[0])
    pool.reserve(1)
    assert pool.offload(1, keep_free=3) == 1, "at most so many"
    assert (pool.num_free, pool.num_cached, pool.host.num_parked) == (3, 3, 1)
    assert pool.offload(9, keep_free=3) == 1, "three, and the one that is promised"
    assert pool.offload(9, keep_free=3) == 0
    assert pool.offload(9, keep_free=9) == 2, "nothing more is idle"
    assert (pool.num_free, pool.num_cached, pool.host.num_parked) == (6, 0, 4)
    memory.settle()
    memory.check()


def test_idle_blocks_go_down_while_the_host_tier_has_room() -> None:
    pool = BlockPool(6, 3)
    memory = Memory(pool)
    pool.release(memory.run(hashes(1, 2, 3, 4))[0])
    assert pool.offload(9, keep_free=9) == 2
    assert (pool.num_cached, pool.host.num_parked, pool.host.capacity) == (2, 2, 2)


def test_a_saved_tail_is_recalled_once() -> None:
    pool = BlockPool(3, 3)
    memory = Memory(pool)
    (name,) = hashes(7)
    table = pool.allocate(1)
    memory.blocks[table[0]] = name
    assert pool.cache.save_tail(table[0], name, None, 0)
    pool.release(table)
    others = pool.allocate(2)
    memory.settle()
    memory.blocks.update(dict.fromkeys(others, FOREIGN))
    block_id = pool.recall_tail(name)
    memory.settle()
    assert block_id is not None
    assert memory.blocks[block_id] == name
    assert (pool.num_held, pool.host.num_parked) == (3, 0)
    assert pool.recall_tail(name) is None
    pool.check()


def test_a_tail_is_saved_where_its_chain_is_cached_and_slots_are_there() -> None:
    parent, tail, strange = *hashes(1, 2), hashes(3)[0]
    for slots, saves in ((0, False), (1, False), (2, True), (3, True)):
        pool = BlockPool(4, slots)
        table = pool.allocate(2)
        pool.register(table[:1], [parent])
        assert pool.cache.save_tail(table[1], tail, parent, 1) == saves
        assert not pool.cache.save_tail(table[1], tail, strange, 1)
        assert (tail in pool.host) == saves
        assert pool.cache.save_tail(table[1], tail, parent, 1) == saves, "once more is no more"
        assert pool.host.num_parked == saves
        assert [block.block_hash for block in pool.cached_chain()] == [parent], "nobody else is told of it"
        pool.check()
        for _ in range(2):
            pool.cache.forget_tail(tail)
        assert pool.host.num_parked == 0


def test_a_tail_that_is_saved_again_is_the_last_to_go() -> None:
    pool = BlockPool(3, 3)
    tails = hashes(7, 8, 9)
    table = pool.allocate(3)
    for saved in (0, 1, 0, 2):
        assert pool.cache.save_tail(table[saved], tails[saved], None, 0)
    assert [name in pool.host for name in tails] == [True, False, True]
    pool.check()
    pool.release(table)


def test_what_is_spilled_is_not_worth_a_second_copy() -> None:
    pool = BlockPool(3, 6)
    memory = Memory(pool)
    names = hashes(1, 2)
    pool.allocate(1)
    slots = pool.spill(memory.run(names)[0])
    memory.settle()
    assert [memory.slots[slot] for slot in slots] == names
    assert (pool.num_cached, pool.host.num_lent) == (2, 2)
    pool.allocate(2)
    assert pool.host.num_parked == 0


def test_slots_are_lent_in_place_of_what_is_parked_longest() -> None:
    pool = BlockPool(4, 4)
    chains = hashes(1, 2), hashes(3)
    for names in chains:
        blocks = pool.allocate(len(names))
        pool.register(blocks, names)
        pool.release(blocks)
    held = pool.allocate(4)  # all three are parked now
    assert (pool.host.num_parked, pool.host.capacity) == (3, 3)
    pool.drain_events()
    slots = pool.spill(held[:1])
    pool.check()
    assert (pool.host.num_parked, pool.host.capacity, pool.host.num_lent) == (2, 2, 1)
    _, evicted = pool.drain_events()
    assert [(each.block_hash, each.tier) for each in evicted] == [(chains[0][1], HOST)]
    slots += pool.spill(held[1:])
    pool.check()
    assert (pool.host.num_parked, pool.host.num_lent, len(set(slots)), pool.num_free) == (0, 4, 4, 4)
    (other,) = pool.allocate(1)
    with pytest.raises(OutOfSlots):
        pool.spill([other])
    pool.host.give_back(slots)
    pool.release([other])
    pool.check()
    assert (pool.host.num_lent, pool.host.capacity) == (0, 3)
