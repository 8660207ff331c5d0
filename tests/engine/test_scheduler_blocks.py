"""Blocks that a scheduler's sequences start with, share, copy before they write, and leave behind a window.

Blocks hold 4 tokens; a step has 12, a chunk 6, a batch 4 sequences. Each draw is of token 50.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import greedy, spec
from lone_sequences import add, asked, commit, granted, joined, names, occupy, small_scheduler, stepped, warm

from pagewire.core.block_hash import chain
from pagewire.core.engine_messages import Join
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import Branch, branches
from pagewire.engine import hold, reservation
from pagewire.engine.block import NO_BLOCK
from pagewire.engine.moves import Move, Way
from pagewire.engine.preemption import PreemptionMode
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import State

# --------------------------------------------------------------------------------------------------------------- blocks


def beside_nobody(scheduler: Scheduler) -> int:
    return 0


def beside_one(scheduler: Scheduler) -> int:
    add(scheduler, "a", 3)
    stepped(scheduler)
    return 1


def beside_two_places(scheduler: Scheduler) -> int:
    add(scheduler, "a", 9, branches=branches(2))
    stepped(scheduler)
    return 2


def beside_one_that_joined(scheduler: Scheduler) -> int:
    joined(scheduler, "j", 5, 5, now_s=9.0)
    return 1


@pytest.mark.parametrize("beside", [beside_nobody, beside_one, beside_two_places, beside_one_that_joined])
@pytest.mark.parametrize("n", [1, 2])
def test_a_sequence_starts_with_its_blocks_and_one_to_spare_for_each_beside_it(beside: Any, n: int) -> None:
    for lacking in (0, 1):
        scheduler = small_scheduler()
        others = beside(scheduler)
        needed = 2 + (others + n - 1 if others else 0)
        occupy(scheduler, scheduler.pool.num_available - needed + lacking)
        waiting = add(scheduler, "w", 7, branches=branches(n))
        granted(scheduler)
        assert waiting.state is (State.WAITING if lacking else State.RUNNING)
        assert len(waiting.block_table) == (0 if lacking else 2)
        assert scheduler.may_take_blocks(waiting) is (not lacking)


def test_what_hands_off_needs_no_block_to_spare() -> None:
    for lacking in (0, 1):
        scheduler = small_scheduler(role=Role.PREFILL)
        add(scheduler, "a", 9)
        stepped(scheduler)
        occupy(scheduler, scheduler.pool.num_available - 2 + lacking)
        waiting = add(scheduler, "w", 7)
        granted(scheduler)
        assert waiting.state is (State.WAITING if lacking else State.RUNNING)


def test_idle_blocks_that_are_hit_are_taken_too() -> None:
    for lacking in (0, 1):
        scheduler = small_scheduler()
        blocks = warm(scheduler, range(8))
        occupy(scheduler, scheduler.pool.num_available - 4 + lacking)
        scheduler.add(spec("w", range(14), greedy(20)))
        assert len(granted(scheduler)) == 1 - lacking
        sequence = scheduler.sequences["w"]
        assert list(sequence.block_table[:2]) == ([] if lacking else blocks)
        assert (sequence.num_computed, sequence.num_registered) == ((0, 0) if lacking else (8, 2))
        assert sequence.group.cached_tokens == (None if lacking else 8)


def test_blocks_that_others_hold_cost_nothing() -> None:
    scheduler = small_scheduler()
    scheduler.holds["cached"] = warm(scheduler, range(8))
    scheduler.pool.share(scheduler.holds["cached"])
    occupy(scheduler, scheduler.pool.num_available - 2)
    scheduler.add(spec("w", range(14), greedy(20)))
    assert [(each.start, len(each.tokens)) for each in granted(scheduler)] == [(8, 6)]


def test_while_the_first_lacks_blocks_nobody_behind_it_gets_any_but_who_has_them_goes_on() -> None:
    scheduler = small_scheduler(12)
    later = joined(scheduler, "j", 5, 5, now_s=2.0)
    occupy(scheduler, 6)
    first, small = add(scheduler, "w", 20, now_s=1.0), add(scheduler, "x", 3, now_s=3.0)
    assert stepped(scheduler) == [[("j", 5, 1)]]
    assert (scheduler.may_take_blocks(first), scheduler.may_take_blocks(small)) == (False, False)
    assert scheduler.may_take_blocks(add(scheduler, "e", 3, now_s=0.5)) is True
    assert stepped(scheduler) == [[("j", 6, 1), ("e", 0, 3)]]
    scheduler.remove(first)
    assert scheduler.may_take_blocks(small)
    assert stepped(scheduler) == [[("e", 3, 1), ("j", 7, 1), ("x", 0, 3)]]
    assert later.state is State.RUNNING


def test_who_lacked_blocks_and_has_them_holds_up_nobody() -> None:
    scheduler = small_scheduler(12)
    occupy(scheduler, 8)
    first, small = add(scheduler, "w", 20, now_s=1.0), add(scheduler, "x", 3, now_s=3.0)
    assert stepped(scheduler) == [[]]
    assert not scheduler.may_take_blocks(small)
    scheduler.remove(small)
    hold.release(scheduler, "hold 0")
    assert stepped(scheduler) == [[("w", 0, 6)]]
    assert first.state is State.RUNNING
    assert scheduler.may_take_blocks(add(scheduler, "x", 3, now_s=3.0))
    assert stepped(scheduler) == [[("w", 6, 6), ("x", 0, 3)]]


def test_counts_are_of_first_admissions() -> None:
    scheduler = small_scheduler(preemption=PreemptionMode.RECOMPUTE)
    warm(scheduler, range(8))
    hold.pin(scheduler, chain(spec("x", [1], greedy(1)).root, range(4), 4))
    scheduler.add(spec("w", range(14), greedy(20), output=(3, 4)))

    def counts() -> tuple[int, int, int]:
        return scheduler.num_prompt_tokens, scheduler.num_cached_tokens, scheduler.num_pinned_tokens

    stepped(scheduler, 2)
    assert counts() == (16, 8, 4)
    scheduler.add(spec("first", [9] * 3, greedy(1)))
    stepped(scheduler)
    assert counts() == (19, 8, 4)
    assert scheduler.groups["w"].cached_tokens == 8


# ---------------------------------------------------------------------------------------------------------------- forks


def test_who_writes_into_a_block_that_others_hold_has_a_copy_first() -> None:
    scheduler = small_scheduler()
    first = add(scheduler, "n", 6, branches=branches(2))
    stepped(scheduler)
    forked = scheduler.sequences["n\x1f1"]
    assert (forked.block_table, forked.num_computed, forked.state) == (first.block_table, 6, State.RUNNING)
    before = list(first.block_table)
    scheduler.pool.take_moves()
    grants = granted(scheduler)
    assert scheduler.pool.take_moves() == (Move(before[1], first.block_table[1], Way.WITHIN),)
    assert (first.block_table[0], list(forked.block_table)) == (before[0], before)
    assert first.block_table[1] != before[1]
    commit(scheduler, grants)
    granted(scheduler)
    assert scheduler.pool.take_moves() == ()


def test_a_copy_needs_a_block_and_a_further_one_is_counted_with_it() -> None:
    for num_free, going in ((1, ["n", "n\x1f1"]), (0, ["n"])):
        scheduler = small_scheduler()
        add(scheduler, "n", 6, branches=branches(2))
        stepped(scheduler)
        occupy(scheduler, scheduler.pool.num_available - num_free)
        assert [each[0] for each in stepped(scheduler)[0]] == going


def test_blocks_that_it_has_for_later_do_not_make_up_for_the_copy() -> None:
    """Of 18 tokens 9 are computed: it has blocks for all, and needs one more to write behind what both have."""
    scheduler = small_scheduler()
    begun = (Branch(index=1, output=(5,)),)
    reservation.reserve(scheduler, asked("n", 9, output=(4,), branches=begun))
    reservation.bind(scheduler, "n", 3)
    reservation.join(scheduler, Join(request_id="n", num_computed=9, output=(4,) * 9, branches=begun))
    assert len(scheduler.sequences["n"].block_table) == 5
    occupy(scheduler, scheduler.pool.num_available)
    assert stepped(scheduler) == [[("n", 9, 6)]]
    assert names(scheduler.waiting) == ["n\x1f1"]


def test_those_that_have_begun_fork_where_all_of_the_prompt_landed_and_else_wait_for_it() -> None:
    begun = (Branch(index=1, output=(5, 6)), Branch(index=2, output=(7,)))
    scheduler = small_scheduler()
    reservation.reserve(scheduler, asked("n", 10, output=(4,), branches=begun))
    reservation.bind(scheduler, "n", 3)
    first = reservation.join(scheduler, Join(request_id="n", num_computed=10, output=(4,), branches=begun))
    assert first is not None
    forked = [scheduler.sequences["n\x1f1"], scheduler.sequences["n\x1f2"]]
    assert scheduler.joined == [first, *forked]
    assert [(each.num_computed, each.block_table, each.output) for each in forked] == [
        (10, first.block_table[:3], [5, 6]), (10, first.block_table[:3], [7]),
    ]  # fmt: skip
    scheduler = small_scheduler()
    scheduler.add(asked("n", 10, output=(4,), branches=begun))
    siblings = [scheduler.sequences["n\x1f1"], scheduler.sequences["n\x1f2"]]
    assert scheduler.waiting == [scheduler.sequences["n"], *siblings]
    assert [(each.num_given, len(each.block_table), each.num_computed) for each in siblings] == [(12, 0, 0), (11, 0, 0)]
    assert stepped(scheduler) == [[("n", 0, 6)]], "the others wait for what it computes for them"
    assert stepped(scheduler, 2) == [[("n", 6, 5)], [("n", 11, 1), ("n\x1f1", 8, 4), ("n\x1f2", 8, 3)]]


def test_one_token_less_of_a_prompt_and_they_compute_it() -> None:
    begun = (Branch(index=1, output=(5,)),)
    for landed, state in ((10, State.JOINED), (9, State.WAITING)):
        scheduler = small_scheduler()
        reservation.reserve(scheduler, asked("n", 10, output=(4,), branches=begun))
        reservation.bind(scheduler, "n", 3)
        reservation.join(scheduler, Join(request_id="n", num_computed=landed, output=(4,), branches=begun))
        assert scheduler.sequences["n\x1f1"].state is state


# -------------------------------------------------------------------------------------------------------------- windows


def test_behind_a_window_a_sequence_has_the_most_that_it_holds_at_a_time() -> None:
    """A window of 4 and chunks of 6 take 4 blocks at most."""
    for lacking in (0, 1):
        scheduler = small_scheduler(window=4)
        occupy(scheduler, scheduler.pool.num_available - 4 + lacking)
        sequence = add(scheduler, "w", 30)
        grants = granted(scheduler)
        assert len(sequence.block_table) == (0 if lacking else 4)
        if lacking:
            continue
        commit(scheduler, grants)
        for _ in range(4):
            assert len(stepped(scheduler)[0]) == 1
            assert len(sequence.held) <= 4
        assert (sequence.num_computed, sequence.num_gone) == (30, 6)


def test_behind_a_window_only_what_the_next_token_sees_is_taken_of_the_cache() -> None:
    scheduler = small_scheduler(window=4)
    blocks = warm(scheduler, range(30))
    scheduler.add(spec("w", range(30), greedy(20)))
    grants = granted(scheduler)
    sequence = scheduler.sequences["w"]
    assert [(each.start, len(each.tokens)) for each in grants] == [(28, 2)]
    assert list(sequence.block_table[:7]) == [NO_BLOCK] * 6 + blocks[6:]
    assert (len(sequence.block_table), sequence.num_gone, scheduler.pool.num_held) == (8, 6, 2)
    assert (sequence.group.cached_tokens, scheduler.num_cached_tokens) == (28, 28)
