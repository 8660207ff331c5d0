"""The pool under random use, against a model of what it must hold; `check()` after every move."""

from __future__ import annotations

import pytest
from engine_runs import ROOT
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.cache_quota import CacheQuota
from pagewire.engine.block import NO_BLOCK
from pagewire.engine.block_pool import BlockPool, OutOfBlocks
from pagewire.engine.host_tier import OutOfSlots
from pagewire.engine.moves import Move, Way

NUM_BLOCKS = 8
FEW = CacheQuota(tag=b"few", share=0.25)


def hashes(*tokens: int) -> list[BlockHash]:
    return chain(ROOT, tokens, 1)


def quota_of(tokens: list[int]) -> CacheQuota | None:
    """Return the quota of whoever asks for a chain: those that begin with 1 have one."""
    return FEW if tokens[0] == 1 else None


def fill(pool: BlockPool, names: list[BlockHash]) -> list[int]:
    """Hold what is cached of a chain, allocate and register the rest."""
    table = pool.match(names)
    pool.share(table)
    fresh = pool.allocate(len(names) - len(table))
    table = table + fresh
    assert pool.register(table, names) == len(names)
    return table


class PoolMachine(RuleBasedStateMachine):
    """Sequences of random chains come, share, grow and go; promises are made, kept and taken back."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.churn = (0, 0)
        self.tables: list[list[int]] = []
        self.promises: list[int] = []
        self.pinned: dict[int, BlockHash] = {}
        self.known: set[BlockHash] = set()  # as a listener of the events would know

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5), reserved=st.booleans())
    def hold(self, tokens: list[int], reserved: bool) -> None:
        names = hashes(*tokens)
        hits = self.pool.match(names)
        missing = len(names) - len(hits)
        if self.pool.num_unreferenced(hits) + missing > self.pool.num_available:
            return
        self.pool.share(hits)
        if reserved:
            self.pool.reserve(missing)
            table = hits + self.pool.allocate_reserved(missing)
        else:
            table = hits + self.pool.allocate(missing)
        self.tables.append(table)
        self.pool.register(table, names, 0, quota_of(tokens))

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def compute_twice(self, tokens: list[int]) -> None:
        """Two sequences compute the same prefix at the same time: the second registers blocks that are known."""
        names = hashes(*tokens)
        if len(names) > self.pool.num_available:
            return
        table = self.pool.allocate(len(names))
        self.tables.append(table)
        self.pool.register(table, names, 0, quota_of(tokens))

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def promise(self, count: int) -> None:
        if count > self.pool.num_available:
            with pytest.raises(OutOfBlocks):
                self.pool.reserve(count)
        else:
            self.pool.reserve(count)
            self.promises.append(count)

    @rule(data=st.data())
    def keep_or_drop_a_promise(self, data: st.DataObject) -> None:
        if self.promises:
            count = self.promises.pop(data.draw(st.integers(0, len(self.promises) - 1)))
            if data.draw(st.booleans()):
                self.tables.append(self.pool.allocate_reserved(count))
            else:
                self.pool.unreserve(count)

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        if self.tables:
            self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=2))
    def pin(self, tokens: list[int]) -> None:
        """What is cached of a chain is kept for good; twice is once."""
        found = self.pool.match(hashes(*tokens))
        if self.pool.num_unreferenced(found) <= self.pool.num_available:
            self.pool.pin(found)
            self.pinned.update(zip(found, hashes(*tokens), strict=False))

    @rule()
    def too_many(self) -> None:
        with pytest.raises(OutOfBlocks):
            self.pool.allocate(self.pool.num_available + 1)

    @invariant()
    def churn_only_grows(self) -> None:
        churn = self.pool.num_allocated, self.pool.num_freed
        assert churn[0] >= self.churn[0]
        assert churn[1] >= self.churn[1]
        assert NUM_BLOCKS - churn[0] + churn[1] == self.pool.num_free
        self.churn = churn

    @invariant()
    def sound(self) -> None:
        self.pool.check()
        held = {block_id for table in self.tables for block_id in table} - {*self.pinned}
        assert self.pool.num_held == len(held)
        assert self.pool.num_claims == sum(map(len, self.tables))
        assert self.pool.num_shared == self.pool.num_claims - len(held), "what would be blocks without sharing"
        assert self.pool.num_pinned == self.pool.num_pinned_in(range(NUM_BLOCKS)) == len(self.pinned)
        pool = self.pool
        assert pool.num_free + pool.num_cached + pool.num_held + pool.num_pinned == NUM_BLOCKS
        assert self.pool.num_reserved == sum(self.promises)
        assert self.pool.num_orphaned(self.tables) == 0
        assert self.pool.num_orphaned(self.tables[1:]) == len(
            {b for b in (self.tables[0] if self.tables else []) if self.tables}
        )

    @invariant()
    def what_is_pinned_is_never_lost(self) -> None:
        cached = {block.block_hash for block in self.pool.cached_chain()}
        assert {*self.pinned.values()} <= cached

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        stored, evicted = self.pool.drain_events()
        for block in evicted:
            self.known.remove(block.block_hash)
        for block in stored:
            assert block.block_hash not in self.known
            self.known.add(block.block_hash)
        assert self.known == {block.block_hash for block in self.pool.cached_chain()}


PoolMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_a_new_pool_is_all_free() -> None:
    pool = BlockPool(NUM_BLOCKS)
    assert (pool.num_blocks, pool.num_free, pool.num_available) == (NUM_BLOCKS,) * 3
    assert (pool.num_allocated, pool.num_freed, pool.num_held, pool.num_cached) == (0, 0, 0, 0)
    assert pool.allocate(3) == [0, 1, 2]
    assert (pool.num_allocated, pool.num_freed) == (3, 0)
    with pytest.raises(OutOfSlots):
        pool.spill([0])
    pool.release(range(3))
    pool.check()


def test_no_block_is_none_of_a_pool() -> None:
    pool = BlockPool(NUM_BLOCKS)
    table = pool.allocate(NUM_BLOCKS)
    assert NO_BLOCK not in table
    pool.release(table)


def test_a_block_stands_for_one_piece_of_one_chain() -> None:
    pool = BlockPool(2)
    table = fill(pool, hashes(1, 2))
    assert pool.register(table, hashes(3, 4)) == 0
    assert pool.register(table, hashes(1, 4)) == 1
    assert (pool.match(hashes(1, 2)), pool.match(hashes(3)), pool.match(hashes(1, 4))) == (table, [], table[:1])
    pool.check()
    pool.release(table)


def test_the_least_recently_used_chain_goes_first_from_its_leaf() -> None:
    pool = BlockPool(4)
    old, new = hashes(1, 2), hashes(3, 4)
    pool.release(fill(pool, old))
    pool.release(fill(pool, new))
    held = pool.allocate(1)
    assert (len(pool.match(old)), len(pool.match(new))) == (1, 2)
    held += pool.allocate(1)
    assert (len(pool.match(old)), len(pool.match(new))) == (0, 2)
    pool.release(held)
    pool.check()


def test_a_leaf_goes_before_its_parent_though_it_was_used_later() -> None:
    pool = BlockPool(3)
    names = hashes(1, 2)
    theirs = pool.allocate(1)
    pool.register(theirs, names[:1])
    ours = pool.allocate(2)  # computes the same first block
    assert pool.register(ours, names) == 2
    pool.release(theirs)
    pool.release(ours)
    pool.allocate(2)
    assert pool.match(names) == theirs


def test_using_a_chain_saves_it() -> None:
    pool = BlockPool(4)
    first, second = hashes(1, 2), hashes(3, 4)
    pool.release(fill(pool, first))
    pool.release(fill(pool, second))
    pool.release(fill(pool, first))
    pool.allocate(2)
    assert (len(pool.match(first)), len(pool.match(second))) == (2, 0)


def test_evicting_a_parent_forgets_the_held_blocks_that_follow() -> None:
    pool = BlockPool(3)
    names = hashes(1, 2)
    theirs = pool.allocate(1)
    pool.register(theirs, names[:1])
    ours = pool.allocate(2)  # computes the same first block, so only its second becomes known
    assert pool.register(ours, names[:1]) == 1
    assert pool.register(ours, names, 1) == 2
    assert pool.match(names) == [theirs[0], ours[1]]
    pool.release(theirs)
    pool.drain_events()
    pool.allocate(1)
    assert pool.match(names) == []
    assert [block.depth for block in pool.drain_events()[1]] == [0, 1]
    assert pool.register(ours, names, 1) == 1
    pool.check()


def test_sharing_may_not_break_a_promise() -> None:
    pool = BlockPool(2)
    names = hashes(1, 2)
    pool.release(fill(pool, names))
    pool.reserve(1)
    with pytest.raises(OutOfBlocks):
        pool.share(pool.match(names))
    pool.share(pool.match(names[:1]))
    assert pool.allocate_reserved(1)
    pool.check()


def test_a_pool_that_does_not_cache_finds_nothing_again() -> None:
    pool = BlockPool(3, caches=False)
    table = pool.allocate(2)
    assert pool.register(table, hashes(1, 2)) == 2, "nothing is to be done about it"
    assert pool.match(hashes(1, 2)) == []
    pool.release(table)
    assert (pool.num_free, pool.num_cached) == (3, 0)


def test_who_is_to_write_into_what_others_hold_or_the_cache_knows_gets_a_copy() -> None:
    pool = BlockPool(4)
    (cached,) = fill(pool, hashes(1))
    (shared,) = pool.allocate(1)
    pool.share([shared])
    assert (pool.is_writable(cached), pool.is_writable(shared), pool.num_unshared([cached, shared])) == (
        False,
        False,
        1,
    )
    copies = pool.own(cached), pool.own(shared)
    assert pool.take_moves() == (Move(cached, copies[0], Way.WITHIN), Move(shared, copies[1], Way.WITHIN))
    assert [pool.is_writable(block_id) for block_id in (*copies, shared)] == [True, True, True]
    assert (pool.num_held, pool.num_cached, pool.num_unshared([shared, *copies])) == (3, 1, 3)
    assert not pool.is_writable(pool.match(hashes(1))[0]), "nobody holds it"


def test_what_others_hold_beside_some_tables_is_told_up_to_the_first_that_they_do_not() -> None:
    pool = BlockPool(5)
    table = fill(pool, hashes(1, 2, 3, 4))
    first, second, third, fourth = table
    pool.pin([first])
    pool.share([second, fourth])
    assert pool.held_beside(table, [table]) == [first, second], "nobody else holds the third"
    assert pool.held_beside(table, []) == table
    assert pool.held_beside([second, third], [[second], [second]]) == []


def test_an_orphan_shows() -> None:
    pool = BlockPool(3)
    table = pool.allocate(2)
    assert pool.num_orphaned([table]) == 0
    assert pool.num_orphaned([table[:1]]) == 1


def test_a_hold_is_exchanged_for_that_of_a_known_equal_where_no_promise_is_broken() -> None:
    pool = BlockPool(4)
    known = fill(pool, hashes(1, 2))
    own = pool.allocate(2)
    assert [pool.hold_equal(each, name) for each, name in zip(own, hashes(1, 2), strict=True)] == known
    assert (pool.num_free, pool.num_claims) == (2, 4)
    assert pool.hold_equal(known[0], hashes(1)[0]) == known[0]
    assert pool.hold_equal(known[0], hashes(3)[0]) == known[0]
    pool.release(known)
    pool.release(known)  # nobody's now: to hold one takes it from those that may be promised
    shared = pool.allocate(1)
    pool.share(shared)
    pool.reserve(3)
    assert pool.hold_equal(shared[0], hashes(1)[0]) == shared[0]
    pool.release(shared)
    assert pool.hold_equal(shared[0], hashes(1)[0]) == known[0]
    pool.check()
