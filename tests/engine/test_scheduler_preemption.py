"""Who gives way in a scheduler's step, to whom, and what it leaves behind; and what is larger than the pool.

Blocks hold 4 tokens; a step has 12, a chunk 6, a batch 4 sequences. Each draw is of token 50.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import greedy, spec
from lone_sequences import add, asked, commit, granted, joined, names, occupy, small_scheduler, stepped, warm

from pagewire.core.engine_messages import Join
from pagewire.core.sequence_spec import Branch, branches
from pagewire.engine import hold, reservation
from pagewire.engine.block import NO_BLOCK
from pagewire.engine.preemption import PreemptionMode
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import State

# ----------------------------------------------------------------------------------------------------------- preemption


def crowded(mode: PreemptionMode = PreemptionMode.AUTO, num_slots: int = 0, length: int = 3) -> Scheduler:
    """Return one whose "a" decodes in a full block, and "b" of `length` behind it, with no block left."""
    scheduler = small_scheduler(6, num_slots=num_slots, preemption=mode)
    add(scheduler, "a", 3, now_s=1.0)
    add(scheduler, "b", length, now_s=2.0)
    stepped(scheduler, 2)
    assert [each.num_computed for each in scheduler.running] == [4, length + 1]
    occupy(scheduler, scheduler.pool.num_available)
    return scheduler


def test_the_last_gives_its_blocks_to_the_first_and_nobody_starts_in_that_step() -> None:
    scheduler = crowded()
    add(scheduler, "c", 2, now_s=0.0)
    first, last = scheduler.running
    assert stepped(scheduler) == [[("a", 4, 1)]]
    assert (names(scheduler.running), names(scheduler.waiting)) == (["a"], ["c", "b"])
    assert (last.state, last.num_computed, last.num_registered, list(last.block_table)) == (State.WAITING, 0, 0, [])
    assert (scheduler.num_preemptions, scheduler.num_swaps, scheduler.preempted) == (1, 0, ["b"])
    assert not scheduler.may_take_blocks(add(scheduler, "d", 3, now_s=1.5)), "it comes behind one that waits"
    assert first.num_computed == 5


def test_who_is_the_last_itself_waits() -> None:
    scheduler = small_scheduler(6)
    add(scheduler, "a", 2, now_s=1.0)
    last = add(scheduler, "b", 4, now_s=2.0)
    stepped(scheduler)
    occupy(scheduler, scheduler.pool.num_available)
    assert stepped(scheduler) == [[("a", 2, 1)]]
    assert (last.state, names(scheduler.waiting)) == (State.WAITING, ["b"])
    assert stepped(scheduler) == [[("a", 3, 1)]]


def test_who_runs_alone_and_lacks_a_block_goes_back() -> None:
    scheduler = small_scheduler(6)
    only = add(scheduler, "a", 4)
    stepped(scheduler)
    occupy(scheduler, scheduler.pool.num_available)
    assert stepped(scheduler) == [[]]
    assert (only.state, scheduler.num_preemptions) == (State.WAITING, 1)


def test_what_was_granted_to_a_victim_in_this_step_is_granted_to_others() -> None:
    """The decode that came last has its token when one that has joined takes its block, to write into a copy."""
    scheduler = small_scheduler(max_num_batched_tokens=4)
    last = add(scheduler, "d", 2, now_s=9.0)
    stepped(scheduler)
    begun = (Branch(index=1, output=(5, 6, 7)),)
    reservation.reserve(scheduler, asked("n", 9, output=(4,), branches=begun), now_s=1.0)
    reservation.bind(scheduler, "n", 3)
    reservation.join(scheduler, Join(request_id="n", num_computed=9, output=(4,), branches=begun))
    occupy(scheduler, scheduler.pool.num_available)
    assert stepped(scheduler) == [[("n", 9, 1), ("n\x1f1", 9, 3)]]
    assert (last.state, last.num_computed) == (State.WAITING, 0)


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
def test_a_preempted_sequence_leaves_its_blocks_to_host_memory_and_has_them_again(mode: PreemptionMode) -> None:
    for length, saved in ((3, 4), (2, 3)):
        scheduler = crowded(mode, num_slots=6, length=length)
        stepped(scheduler)
        swaps = mode is PreemptionMode.SWAP
        assert (scheduler.num_preemptions, scheduler.num_swaps) == (1, swaps)
        last = scheduler.waiting[0]
        assert (last.num_saved, last.num_computed) == (saved if swaps else 0, 0)
        assert scheduler.pool.host.num_parked == swaps
        hold.release(scheduler, "hold 0")
        start = saved if swaps else 0
        assert stepped(scheduler) == [[("a", 5, 1), ("b", start, length + 2 - start)]]
        assert (last.num_saved, scheduler.pool.host.num_parked) == (0, 0)


def test_a_preempted_sequence_that_ends_leaves_nothing_behind() -> None:
    scheduler = crowded(PreemptionMode.SWAP, num_slots=6, length=2)
    stepped(scheduler)
    assert scheduler.pool.host.num_parked == 1
    scheduler.remove(scheduler.waiting[0])
    assert scheduler.pool.host.num_parked == 0


def test_a_request_is_preempted_whole_for_another_and_by_ones_for_itself() -> None:
    scheduler = small_scheduler(12)
    add(scheduler, "a", 4, now_s=1.0)
    add(scheduler, "n", 3, now_s=2.0, branches=branches(2))
    stepped(scheduler)
    assert names(scheduler.running) == ["a", "n", "n\x1f1"]
    occupy(scheduler, scheduler.pool.num_available)
    assert stepped(scheduler) == [[("a", 4, 1)]]
    assert names(scheduler.waiting) == ["n", "n\x1f1"]
    assert scheduler.preempted == ["n", "n"]
    scheduler = small_scheduler(12)
    add(scheduler, "a", 2, now_s=1.0)
    add(scheduler, "n", 5, now_s=2.0, branches=branches(2))
    stepped(scheduler, 3)
    occupy(scheduler, scheduler.pool.num_available)
    assert stepped(scheduler) == [[("a", 4, 1)]], "what one of them has would be enough"
    alone = small_scheduler(12)
    add(alone, "n", 3, branches=branches(3))
    stepped(alone)
    occupy(alone, alone.pool.num_available - 1)
    assert stepped(alone) == [[("n", 3, 1), ("n\x1f1", 3, 1)]]
    assert (names(alone.waiting), alone.preempted) == (["n\x1f2"], ["n"])


def test_what_is_removed_leaves_what_it_cached_to_host_memory() -> None:
    scheduler = small_scheduler(6, num_slots=6)
    sequence = add(scheduler, "a", 4)
    stepped(scheduler)
    scheduler.remove(sequence)
    occupy(scheduler, scheduler.pool.num_available)
    assert scheduler.pool.host.num_parked == 1


def test_who_joined_gives_way_too() -> None:
    scheduler = small_scheduler(7, max_num_seqs=1)
    add(scheduler, "a", 4, now_s=1.0)
    stepped(scheduler)
    later = joined(scheduler, "j", 5, 5, now_s=2.0)
    occupy(scheduler, scheduler.pool.num_available)
    assert stepped(scheduler) == [[("a", 4, 1)]]
    assert (scheduler.joined, scheduler.waiting, later.state) == ([], [later], State.WAITING)


def test_one_that_joined_first_takes_the_blocks_of_one_behind_it_which_does_not_start() -> None:
    scheduler = small_scheduler(12)
    joined(scheduler, "i", 4, 4, now_s=1.0)
    later = joined(scheduler, "j", 5, 5, now_s=2.0)
    scheduler.sequences["i"].block_table, spare = (
        scheduler.sequences["i"].block_table[:1], scheduler.sequences["i"].block_table[1:],
    )  # fmt: skip
    scheduler.pool.release(spare)
    occupy(scheduler, scheduler.pool.num_available)
    add(scheduler, "w", 2, now_s=3.0)
    assert stepped(scheduler) == [[("i", 4, 1)]]
    assert (later.state, names(scheduler.waiting)) == (State.WAITING, ["j", "w"])


# --------------------------------------------------------------------------------------------------- larger than a pool


def spilling(**bounds: Any) -> Scheduler:
    return small_scheduler(4, num_slots=8, spills=True, **bounds)


def test_what_is_larger_than_the_pool_runs_alone_and_spills_its_first_blocks() -> None:
    scheduler = spilling()
    large = add(scheduler, "l", 20, now_s=1.0)
    assert stepped(scheduler, 2) == [[("l", 0, 6)], [("l", 6, 6)]]
    other = add(scheduler, "o", 2, now_s=0.0)
    assert (scheduler.may_take_blocks(other), large.num_gone) == (False, 0)
    (third,) = granted(scheduler)
    assert (third.start, len(third.tokens), third.spilled) == (12, 6, tuple(large.spilled))
    assert (large.block_table[0], large.num_gone, len(large.spilled), len(large.held)) == (NO_BLOCK, 1, 1, 4)
    commit(scheduler, [third])
    assert stepped(scheduler) == [[("l", 18, 2)]]
    scheduler.remove(large)
    assert scheduler.may_take_blocks(other)
    assert (scheduler.pool.num_held, scheduler.pool.host.num_lent) == (0, 0)
    assert stepped(scheduler) == [[("o", 0, 2)]]


def runs(scheduler: Scheduler) -> None:
    add(scheduler, "o", 2, now_s=0.0)


def has_joined(scheduler: Scheduler) -> None:
    joined(scheduler, "o", 3, 3, now_s=9.0)


def holds(scheduler: Scheduler) -> None:
    occupy(scheduler, 1)


def is_promised(scheduler: Scheduler) -> None:
    reservation.reserve(scheduler, asked("o", 2, 2))


@pytest.mark.parametrize("other", [runs, has_joined, holds, is_promised])
def test_it_waits_until_nobody_else_has_a_block(other: Any) -> None:
    scheduler = spilling()
    other(scheduler)
    large = add(scheduler, "l", 20, now_s=1.0)
    stepped(scheduler)
    assert (large.state, scheduler.may_take_blocks(large)) == (State.WAITING, False)
    scheduler.remove_request("o")
    hold.release(scheduler, "hold 0")
    assert stepped(scheduler) == [[("l", 0, 6)]]


def test_it_has_what_is_cached_of_it() -> None:
    scheduler = spilling()
    blocks = warm(scheduler, range(8))
    scheduler.add(spec("l", range(20), greedy(10)))
    assert [(each.start, len(each.tokens)) for each in granted(scheduler)] == [(8, 6)]
    assert list(scheduler.sequences["l"].block_table[:2]) == blocks
    assert scheduler.sequences["l"].group.cached_tokens == 8


def test_it_waits_while_others_hold_what_it_needs_and_nothing_of_it_is_full() -> None:
    scheduler = spilling(chunk_size=3)
    large = add(scheduler, "l", 20)
    assert stepped(scheduler) == [[("l", 0, 3)]]
    occupy(scheduler, 3)
    assert stepped(scheduler) == [[]]
    assert (large.state, large.num_gone, scheduler.num_preemptions) == (State.RUNNING, 0, 0)
    hold.release(scheduler, "hold 0")
    assert stepped(scheduler) == [[("l", 3, 3)]]


def test_one_that_grows_larger_than_the_pool_beside_others_has_them_wait_and_then_spills() -> None:
    scheduler = spilling()
    large = add(scheduler, "l", 14, now_s=1.0)
    stepped(scheduler, 2)
    other = add(scheduler, "o", 2, now_s=2.0)
    for _ in range(8):
        stepped(scheduler)
    assert (large.num_tokens > 16, large.num_gone > 0, other.state) == (True, True, State.WAITING)
    assert not scheduler.may_take_blocks(add(scheduler, "e", 2, now_s=0.0)), "nobody runs beside it"
