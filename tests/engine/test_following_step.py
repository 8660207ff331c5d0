"""When a step is begun behind another, and what it is, case by case; `test_follow.py` plays them at random.

Blocks hold 4 tokens; a step has 12, a chunk 6, a batch 4 sequences. Each draw is of token 50.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lone_sequences import add, granted, joined, names, occupy, small_scheduler, stepped, warm

from pagewire.core.messages import Role
from pagewire.core.sequence_spec import branches
from pagewire.engine.follow import follow
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import AHEAD, Draw, Step


def decoding(*lengths: int, num_blocks: int = 20, num_slots: int = 0, **bounds: Any) -> tuple[Scheduler, Step]:
    """Let "a", "b" and so on have prompts so long, and compute them; return their next step, of decodes."""
    scheduler = small_scheduler(num_blocks, num_slots=num_slots, **bounds)
    for number, length in enumerate(lengths):
        add(scheduler, chr(ord("a") + number), length)
    while scheduler.waiting or any(not sequence.output for sequence in scheduler.running):
        stepped(scheduler)
    return scheduler, next_step(scheduler)


def next_step(scheduler: Scheduler) -> Step:
    """Return the next step, as it is computed."""
    return Step(grants=tuple(granted(scheduler)))


def share(scheduler: Scheduler, block_id: int) -> None:
    """Have somebody else hold a block too."""
    scheduler.pool.share([block_id])
    scheduler.holds["another"] = [block_id]


def test_each_goes_a_token_further() -> None:
    scheduler, step = decoding(5, 6)
    after = follow(scheduler, step)
    assert after is not None
    assert [(grant.request_id, grant.start, grant.tokens) for grant in after.grants] == [
        ("a", 6, (AHEAD,)), ("b", 7, (AHEAD,))
    ]  # fmt: skip
    for before, grant in zip(step.grants, after.grants, strict=True):
        assert before.draw is not None
        assert grant.draw == Draw(sampling=before.draw.sampling, index=0, position=before.draw.position + 1)
        assert (grant.block_ids, grant.spilled) == (before.block_ids, before.spilled)
        assert not grant.seal


def test_into_the_next_block_goes_one_that_is_allocated_for_it() -> None:
    scheduler, step = decoding(7)
    (a,) = scheduler.running
    held = list(a.block_table)
    after = follow(scheduler, step)
    assert after is not None
    assert (len(held), len(a.block_table), list(a.block_table[:2])) == (2, 3, held)
    assert after.grants[0].block_ids == a.block_table
    assert (a.num_computed, a.output) == (7, [50]), "nothing else of it changed"
    scheduler.pool.check()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 6])
def test_behind_the_end_of_a_prompt_goes_its_first_token(length: int) -> None:
    """On the edge of a block and within one, where the prompt's blocks are all that there are."""
    scheduler = small_scheduler(20)
    add(scheduler, "a", length)
    step = next_step(scheduler)
    after = follow(scheduler, step)
    assert after is not None
    (grant,) = after.grants
    (a,) = scheduler.running
    assert (grant.start, grant.tokens, len(grant.block_ids)) == (length, (AHEAD,), length // 4 + 1)
    assert grant.block_ids == a.block_table
    assert (a.num_computed, a.output) == (0, []), "nothing else of it changed"


def test_behind_a_chunk_that_is_not_the_last_goes_nothing() -> None:
    scheduler = small_scheduler(20)
    add(scheduler, "a", 9)
    assert follow(scheduler, next_step(scheduler)) is None


def test_into_a_block_that_it_has_already_it_goes_if_nobody_else_does() -> None:
    for is_shared in (False, True):
        scheduler, step = decoding(7)
        (a,) = scheduler.running
        a.block_table.extend(scheduler.pool.allocate(1))
        if is_shared:
            share(scheduler, a.block_table[-1])
        after = follow(scheduler, step)
        assert (after is None) == is_shared
        assert len(a.block_table) == 3


def test_a_block_that_is_shared_is_not_written_into() -> None:
    scheduler, step = decoding(5)
    share(scheduler, scheduler.running[0].block_table[-1])
    assert follow(scheduler, step) is None


def test_what_hands_off_what_has_the_pool_alone_and_what_others_might_join_is_not_followed() -> None:
    scheduler, step = decoding(5)
    assert follow(scheduler, step) is not None
    add(scheduler, "b", 5)
    assert follow(scheduler, step) is None, "it might start"
    scheduler, step = decoding(5)
    scheduler._lone = scheduler.running[0]
    assert follow(scheduler, step) is None
    scheduler = small_scheduler(role=Role.PREFILL)
    add(scheduler, "a", 5)
    assert follow(scheduler, next_step(scheduler)) is None


def test_a_full_batch_is_followed_though_others_wait() -> None:
    scheduler, step = decoding(5, 6, max_num_seqs=2)
    add(scheduler, "c", 5)
    after = follow(scheduler, step)
    assert after is not None
    assert [grant.request_id for grant in after.grants] == ["a", "b"]


def test_of_those_that_wait_one_that_might_start_is_enough() -> None:
    scheduler, step = decoding(5, 6, max_num_seqs=3)
    add(scheduler, "w", 5, branches=branches(2))
    assert not scheduler.may_start
    assert follow(scheduler, step) is not None
    joined(scheduler, "j", 5, 5)
    assert scheduler.may_start
    assert follow(scheduler, step) is None


def test_all_that_run_must_be_in_the_step_and_nobody_else() -> None:
    scheduler, step = decoding(5, 6)
    assert follow(scheduler, Step(grants=step.grants[:1])) is None
    scheduler.remove(scheduler.sequences["a"])
    assert follow(scheduler, Step(grants=step.grants[1:])) is not None
    add(scheduler, "c", 5)
    stepped(scheduler)
    assert names(scheduler.running) == ["b", "c"]
    assert follow(scheduler, step) is None, "of a nothing is known"


def test_a_chunk_that_draws_nothing_is_not_followed() -> None:
    scheduler, step = decoding(5)
    assert follow(scheduler, Step(grants=(replace(step.grants[0], draw=None),))) is None


def test_a_request_of_several_answers_is_not_followed() -> None:
    scheduler = small_scheduler()
    add(scheduler, "a", 5, branches=branches(2))
    prompt = next_step(scheduler)
    assert scheduler.sequences["a"].unforked
    assert follow(scheduler, prompt) is None, "they are not there yet"
    stepped(scheduler)
    assert len(scheduler.running) == 2
    assert follow(scheduler, next_step(scheduler)) is None


def test_who_ends_by_its_length_is_left_out_and_holds_up_others_for_whom_its_place_is() -> None:
    for who_waits in ("nobody", "a prompt", "one that joins"):
        scheduler = small_scheduler(max_num_seqs=2)
        add(scheduler, "a", 5, max_tokens=2)
        add(scheduler, "b", 5)
        stepped(scheduler)
        step = next_step(scheduler)
        if who_waits == "a prompt":
            add(scheduler, "c", 5)
        if who_waits == "one that joins":
            joined(scheduler, "c", 5, 5)
        after = follow(scheduler, step)
        followed = [grant.request_id for grant in after.grants] if after is not None else []
        assert followed == (["b"] if who_waits == "nobody" else [])


def test_with_nobody_left_there_is_no_step() -> None:
    for most, is_followed in ((2, False), (3, True)):
        scheduler = small_scheduler()
        add(scheduler, "a", 5, max_tokens=most)
        stepped(scheduler)
        assert (follow(scheduler, next_step(scheduler)) is not None) == is_followed


def test_the_longest_sequence_ends_too() -> None:
    for longest, is_followed in ((7, False), (8, True)):
        scheduler, step = decoding(5, max_model_len=longest)
        assert (follow(scheduler, step) is not None) == is_followed


def test_it_takes_no_more_blocks_than_there_are() -> None:
    for num_free, is_followed in ((0, False), (1, False), (2, True)):
        scheduler, step = decoding(7, 7)
        occupy(scheduler, scheduler.pool.num_free - num_free)
        assert (follow(scheduler, step) is not None) == is_followed


def test_what_is_cached_makes_room_unless_it_would_be_copied_to_the_host_first() -> None:
    for num_slots, is_followed in ((0, True), (4, False)):
        scheduler, step = decoding(7, num_slots=num_slots)
        warm(scheduler, range(60, 68))
        occupy(scheduler, scheduler.pool.num_free)
        assert scheduler.pool.num_available == 2
        assert (follow(scheduler, step) is not None) == is_followed


def test_who_is_first_of_those_that_wait_says_whether_one_might_start() -> None:
    scheduler, _ = decoding(5, 6, max_num_seqs=3)
    assert not scheduler.may_start, "nobody waits"
    add(scheduler, "w", 5, branches=branches(2))
    add(scheduler, "v", 5, now_s=1.0)
    assert names(scheduler.waiting) == ["w", "v"]
    assert not scheduler.may_start, "nobody passes the first one"
    scheduler.remove_request("w")
    assert scheduler.may_start


def test_blocks_of_one_that_ended_are_held_until_the_step_behind_is_over() -> None:
    scheduler, _ = decoding(5, 6)
    a, num_free = scheduler.sequences["a"], scheduler.pool.num_free
    assert scheduler.land(frozenset({"a"})) == set()
    scheduler.end(a)
    assert "a" not in scheduler.sequences
    assert names(scheduler.running) == ["b"]
    assert scheduler.pool.num_free == num_free
    assert scheduler.pool.num_orphaned(scheduler.tables()) == 0, "they are held for somebody"
    assert scheduler.land() == {"a"}
    assert scheduler.pool.num_free + scheduler.pool.num_cached == num_free + 2
    assert (scheduler.land(), scheduler.ahead) == (set(), frozenset())
    scheduler.pool.check()


def test_of_one_for_whom_nothing_is_begun_blocks_are_given_back_at_once() -> None:
    scheduler, _ = decoding(5, 6)
    num_free = scheduler.pool.num_free
    scheduler.land(frozenset({"b"}))
    scheduler.end(scheduler.sequences["a"])
    assert scheduler.pool.num_free + scheduler.pool.num_cached == num_free + 2
    assert scheduler.land() == set()
    assert scheduler.pool.num_orphaned(scheduler.tables()) == 0


def test_within_a_block_it_takes_none() -> None:
    for length in (4, 5, 6):  # the step behind is at 5, 6 and 7, of blocks that end at 7
        scheduler, step = decoding(length)
        occupy(scheduler, scheduler.pool.num_free)
        assert follow(scheduler, step) is not None
