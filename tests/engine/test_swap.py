"""What a preempted sequence leaves to host memory, and that it has it again: which bytes, behind which chain."""

from __future__ import annotations

import pytest
from lone_sequences import limits, lone_sequence

from pagewire.engine import departed, swap
from pagewire.engine.block import table_of
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.moves import Move, Way
from pagewire.engine.preemption import Preemption, PreemptionMode
from pagewire.engine.sequence import Sequence
from pagewire.engine.step_meter import StepMeter

ALWAYS = Preemption(PreemptionMode.SWAP)
NEVER = Preemption(PreemptionMode.RECOMPUTE)


def victim(pool: BlockPool, length: int = 14, computed: int = 10, num_blocks: int = 4) -> Sequence:
    """Return a sequence with blocks for a chunk, the full ones of which are cached."""
    sequence = lone_sequence(range(length), block_table=pool.allocate(num_blocks), num_computed=computed)
    full = computed // 4
    sequence.num_registered = pool.register(sequence.block_table, sequence.chain(full))
    return sequence


def preempt(pool: BlockPool, sequence: Sequence, preemption: Preemption = ALWAYS) -> bool:
    """Take all blocks of a sequence, as the scheduler does."""
    saved = swap.save(pool, limits(), preemption, sequence)
    departed.release(pool, sequence, parks=saved)
    sequence.num_computed = sequence.num_registered = 0
    return saved


@pytest.mark.parametrize(
    ("length", "computed", "cached", "saved"),
    [
        (14, 10, 2, 10),
        (14, 8, 2, 8),  # it has no unfilled block
        (14, 13, 3, 13),
        (14, 3, 0, 3),
    ],
)
def test_what_was_left_is_there_again(length: int, computed: int, cached: int, saved: int) -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool, length, computed)
    tail = sequence.block_table[computed // 4]
    assert preempt(pool, sequence) is True
    assert sequence.num_saved == saved
    has_tail = computed % 4 > 0
    assert pool.host.num_parked == has_tail
    assert pool.take_moves() == ((Move(tail, 0, Way.OUT),) if has_tail else ())
    swap.claim(pool, limits(), sequence)
    assert (sequence.num_computed, sequence.num_registered) == (saved, cached)
    assert len(sequence.block_table) == -(-saved // 4)
    assert (sequence.num_saved, pool.host.num_parked, pool.num_held) == (0, 0, -(-saved // 4))
    assert pool.take_moves() == ((Move(0, sequence.block_table[-1], Way.IN),) if has_tail else ())
    pool.check()


def test_a_tail_is_kept_behind_its_chain() -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool)
    full = sequence.chain(2)
    tail_hash = sequence.tail_hash(10)
    preempt(pool, sequence)
    (parked,) = pool.host.parked()
    assert (parked.block_hash, parked.parent_hash, parked.depth, parked.is_tail) == (tail_hash, full[1], 2, True)


def test_a_tail_whose_chain_is_gone_is_left() -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool)
    preempt(pool, sequence)
    first = lone_sequence(range(5))
    first.block_table = table_of(pool.claim(first.hit_chain()))
    others = pool.allocate(5)  # the second block goes to host memory, and is lost there
    pool.host.drop_after(sequence.chain(1)[0])
    pool.release(others)
    swap.claim(pool, limits(), sequence)
    assert (sequence.num_computed, sequence.num_registered, len(sequence.block_table)) == (4, 1, 1)
    assert sequence.num_saved == 0


def test_a_tail_is_not_needed_where_others_filled_its_block() -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool)
    preempt(pool, sequence)
    other = victim(pool, 14, 12, 3)
    departed.release(pool, other)
    swap.claim(pool, limits(), sequence)
    assert (sequence.num_computed, sequence.num_registered, len(sequence.block_table)) == (12, 3, 3)
    assert pool.host.num_parked == 0


def test_blocks_that_went_to_host_memory_come_up_and_the_tail_behind_them() -> None:
    pool = BlockPool(4, 5)
    sequence = victim(pool)
    preempt(pool, sequence)
    pool.release(pool.allocate(4))
    assert (pool.num_cached, pool.host.num_parked) == (0, 3)
    swap.claim(pool, limits(), sequence)
    assert (sequence.num_computed, sequence.num_registered, len(sequence.block_table)) == (10, 2, 3)
    assert pool.host.num_parked == 0


def test_a_tail_that_had_to_go_is_computed_anew() -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool)
    preempt(pool, sequence)
    (parked,) = pool.host.parked()
    pool.host.discard(parked.block_hash)
    swap.claim(pool, limits(), sequence)
    assert (sequence.num_computed, sequence.num_registered, len(sequence.block_table)) == (8, 2, 2)


def test_a_sequence_that_left_nothing_has_what_is_cached() -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool)
    assert preempt(pool, sequence, NEVER) is False
    assert (sequence.num_saved, pool.host.num_parked) == (0, 0)
    swap.claim(pool, limits(), sequence)
    assert (sequence.num_computed, len(sequence.block_table)) == (8, 2)


def test_a_tail_without_its_chain_in_the_pool_cannot_be_kept() -> None:
    pool = BlockPool(6, 5)
    sequence = lone_sequence(range(14), block_table=pool.allocate(3), num_computed=10)  # the cache knows none of it
    assert preempt(pool, sequence) is True
    assert (sequence.num_saved, pool.host.num_parked) == (0, 0)


def test_what_comes_in_parts_leaves_nothing() -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool)
    assert swap.save(pool, limits(window=4), ALWAYS, sequence) is False
    assert (sequence.num_saved, pool.host.num_parked) == (0, 0)


def test_blocks_that_others_hold_too_are_not_its_to_leave() -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool, num_blocks=3)
    pool.share(sequence.block_table)
    assert swap.save(pool, limits(), ALWAYS, sequence) is False
    pool.release(sequence.block_table[2:])
    assert swap.save(pool, limits(), ALWAYS, sequence) is True


@pytest.mark.parametrize(
    ("shared", "copy_s", "saves"),
    [
        # 10 tokens at 1 s each in 3 blocks, `shared` of which are others' too: the tokens of its own, at most all.
        (0, 3.25, True),  # 9.75 against 10
        (0, 3.5, False),  # 10.5 against 10
        (1, 4.0, True),  # 8 against 8
        (1, 4.25, False),  # 8.5 against 8
    ],
)
def test_copying_is_weighed_against_computing_what_is_its_own(shared: int, copy_s: float, saves: bool) -> None:
    meter = StepMeter()
    meter.prefill_s_per_token, meter.copy_out_s_per_block = 1.0, copy_s
    pool = BlockPool(6, 5)
    sequence = victim(pool)
    pool.share(sequence.block_table[:shared])
    assert swap.save(pool, limits(), Preemption(meter=meter), sequence) is saves


def test_host_memory_must_have_a_slot_for_each_of_its_blocks_and_one_more() -> None:
    for num_slots, saves in ((3, False), (4, True)):
        pool = BlockPool(6, num_slots)
        assert swap.save(pool, limits(), Preemption(), victim(pool)) is saves


def test_what_was_saved_is_let_go_of_once() -> None:
    pool = BlockPool(6, 5)
    sequence = victim(pool)
    preempt(pool, sequence)
    swap.forget(pool, sequence)
    assert (sequence.num_saved, pool.host.num_parked) == (0, 0)
    swap.forget(pool, sequence)
