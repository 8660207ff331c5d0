"""Blocks that left the pool before their sequence ended: which those are, and that nothing is held twice or lost."""

from __future__ import annotations

import pytest
from engine_runs import ROOT
from lone_sequences import limits, lone_sequence

from pagewire.core.block_hash import chain
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import branches
from pagewire.engine import departed
from pagewire.engine.beam_search import BeamSearch
from pagewire.engine.block import NO_BLOCK
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.group import Group
from pagewire.engine.moves import Move, Way


def pool_with_one_pinned() -> BlockPool:
    """Return a pool of 4, whose block 0 is pinned."""
    pool = BlockPool(4, 6)
    block = pool.allocate(1)
    pool.register(block, chain(ROOT, [9] * 4, 4))
    pool.pin(block)
    pool.release(block)
    assert pool.num_pinned == 1
    return pool


def test_too_large_is_what_has_more_blocks_than_are_not_pinned() -> None:
    pool, bounds = pool_with_one_pinned(), limits(spills=True)
    assert departed.is_too_large(pool, bounds, lone_sequence([1] * 13)) is True
    assert departed.is_too_large(pool, bounds, lone_sequence([1] * 12)) is False
    assert departed.is_too_large(pool, bounds, lone_sequence([1] * 12, output=[1])) is True
    assert departed.is_too_large(pool, limits(), lone_sequence([1] * 13)) is False
    assert departed.comes_in_parts(pool, bounds, lone_sequence([1] * 13))
    assert not departed.comes_in_parts(pool, bounds, lone_sequence([1] * 12))


def test_those_that_fork_do_not_spill() -> None:
    asked = SamplingParams(use_beam_search=True, beam_width=2, temperature=0.0)
    search = BeamSearch.of(asked, 5, frozenset())
    for sequence in (
        lone_sequence([1] * 13, unforked=branches(2)),
        lone_sequence([1] * 13, asked, group=Group(request_id="r", search=search)),
    ):
        assert departed.is_too_large(pool_with_one_pinned(), limits(spills=True), sequence) is False


@pytest.mark.parametrize(("length", "in_parts"), [(6, False), (7, True), (40, True)])
def test_a_sequence_behind_its_window_comes_in_parts(length: int, in_parts: bool) -> None:
    """With a window of 4 the token behind 7 sees those from 4 on: the first block is passed."""
    assert departed.comes_in_parts(BlockPool(99), limits(window=4), lone_sequence([1] * length)) is in_parts


def test_what_the_window_passed_is_given_back_as_it_moves() -> None:
    pool, bounds = BlockPool(8), limits(window=4)
    sequence = lone_sequence([1] * 20, block_table=pool.allocate(5))
    table = list(sequence.block_table)
    for computed, gone in ((0, 0), (6, 0), (7, 1), (8, 1), (14, 2), (15, 3)):
        sequence.num_computed = computed
        departed.pass_blocks(pool, bounds, sequence)
        assert list(sequence.block_table) == [NO_BLOCK] * gone + table[gone:]
        assert (sequence.num_gone, pool.num_free) == (gone, 3 + gone)


def test_what_is_computed_and_full_spills_and_comes_back_with_the_sequence() -> None:
    pool, bounds = BlockPool(6, 6), limits(spills=True)
    sequence = lone_sequence([1] * 20, block_table=pool.allocate(5), num_computed=11)
    table = list(sequence.block_table)
    assert departed.spill(pool, bounds, sequence, 1) is True
    assert (list(sequence.block_table), sequence.num_gone) == ([NO_BLOCK, *table[1:]], 1)
    assert departed.spill(pool, bounds, sequence, 9) is True
    assert (list(sequence.block_table), sequence.num_gone) == ([NO_BLOCK] * 2 + table[2:], 2)
    assert pool.take_moves() == (Move(table[0], 0, Way.OUT), Move(table[1], 1, Way.OUT))
    assert (sequence.spilled, pool.host.num_lent, pool.num_free) == ([0, 1], 2, 3)
    assert departed.spill(pool, bounds, sequence, 9) is False, "the third is not full"
    assert sequence.num_gone == 2
    departed.release(pool, sequence)
    assert (pool.num_free, pool.host.num_lent) == (6, 0)
    assert (list(sequence.block_table), sequence.num_gone, sequence.spilled) == ([], 0, [])


@pytest.mark.parametrize("parks", [True, False])
def test_what_is_released_is_worth_a_copy_where_it_parks(parks: bool) -> None:
    pool = BlockPool(2, 6)
    sequence = lone_sequence([1] * 8, block_table=pool.allocate(2), num_computed=8)
    pool.register(sequence.block_table, sequence.chain(2))
    departed.release(pool, sequence, parks=parks)
    assert pool.num_cached == 2
    pool.allocate(2)
    assert pool.host.num_parked == (2 if parks else 0)


def test_unless_told_otherwise_it_parks() -> None:
    pool = BlockPool(1, 6)
    sequence = lone_sequence([1] * 4, block_table=pool.allocate(1), num_computed=4)
    pool.register(sequence.block_table, sequence.chain(1))
    departed.release(pool, sequence)
    pool.allocate(1)
    assert pool.host.num_parked == 1


def test_a_sequence_begins_behind_what_it_passed_with_what_is_cached() -> None:
    pool = BlockPool(6)
    earlier = lone_sequence([1] * 16, block_table=pool.allocate(4))
    pool.register(earlier.block_table, earlier.chain(4))
    hits = list(earlier.block_table[2:])
    departed.release(pool, earlier)
    sequence = lone_sequence([1] * 20)
    departed.begin_behind(pool, limits(window=4), sequence, 2, hits)
    assert (list(sequence.block_table), sequence.num_gone) == ([NO_BLOCK] * 2 + hits, 2)
    assert (sequence.num_computed, sequence.num_registered) == (16, 4)
    assert (pool.num_held, pool.num_cached) == (2, 2)
