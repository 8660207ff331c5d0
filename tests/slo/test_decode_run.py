"""The fast way of a step in which everybody decodes, against the scheduler's own way, and where it leaves a step alone.

Blocks hold 4 tokens; a batch has 4 sequences, a sequence 40 tokens. Each draw is of token 50.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from engine_runs import greedy, spec
from lone_sequences import add, commit, granted, joined, names, occupy, small_scheduler, stepped

from pagewire.core.engine_messages import Join
from pagewire.core.errors import Overloaded
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import branches
from pagewire.engine import progress, reservation
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence
from pagewire.slo.simulation import decode_run


def state_of(scheduler: Scheduler) -> dict[str, Any]:
    """Return all that a step may change."""
    scheduler.pool.check()

    def told(each: Sequence) -> tuple[object, ...]:
        return each.name, each.state, each.num_computed, [*each.output], [*each.block_table], each.num_registered

    return {
        **{name: [told(each) for each in getattr(scheduler, name)] for name in ("running", "joined", "waiting")},
        "known": [*scheduler.sequences],
        "blocks": (scheduler.pool.num_available, scheduler.pool.num_cached, scheduler.pool.num_free),
        "preempted": scheduler.num_preemptions,
    }


def join(scheduler: Scheduler, name: str, sampling: SamplingParams, token: int, **changes: Any) -> Sequence:
    """Let a request of five tokens join with its first token."""
    reservation.reserve(scheduler, spec(name, [ord(name)] * 5, sampling, **changes))
    reservation.bind(scheduler, name, 2)
    sequence = reservation.join(scheduler, Join(request_id=name, num_computed=5, output=(token,)))
    assert sequence is not None
    return sequence


def fast_step(scheduler: Scheduler) -> bool:
    """Take a step the fast way; return False, with nothing changed, where it is not plain."""
    before = state_of(scheduler)
    batch = decode_run.begin(scheduler)
    if batch is None:
        after = state_of(scheduler)
        assert sorted(after.pop("running")) == sorted(before.pop("running"))  # a schedule puts them in order, too
        assert after == before
        return False
    decode_run.end(scheduler, batch)
    return True


def come(scheduler: Scheduler, number: int, seed: int, priority: int) -> None:
    """Let request `number` come: built here, or joined with its first token."""
    chance = random.Random(f"{seed} {number}")
    name, length, max_tokens = f"{chr(97 + number)}", chance.randint(1, 12), chance.randint(1, 30)
    now_s = 0.002 * number  # by srpt two tokens of a prompt
    if chance.random() < 0.2:
        add(scheduler, name, length, now_s, max_tokens=max_tokens, priority=priority)
    else:
        with suppress(Overloaded):
            sequence = joined(scheduler, name, length, length, now_s, max_tokens=max_tokens + 1, priority=priority)
            progress.register_full_blocks(scheduler, sequence)  # as a loop does


@pytest.mark.parametrize("scheduling", ["fcfs", "priority", "srpt"])
@pytest.mark.parametrize("seed", range(8))
def test_the_fast_way_comes_to_what_a_scheduled_step_comes_to(scheduling: str, seed: int) -> None:
    chance = random.Random(seed)
    fast, whole = (small_scheduler(14 + seed, scheduling=scheduling) for _ in range(2))
    number, num_fast = 0, 0
    for _ in range(240):
        if number < 20 and chance.random() < 0.25:
            priority = chance.randint(-9, 9)
            for each in (fast, whole):
                come(each, number, seed, priority)
            number += 1
        stepped(whole)
        if fast_step(fast):
            num_fast += 1
        else:
            stepped(fast)
        assert state_of(fast) == state_of(whole)
    assert not whole.sequences
    assert num_fast > 20


def test_who_has_room_joins_the_batch_behind_those_that_run() -> None:
    scheduler = small_scheduler()
    for number, name in enumerate("abcdef"):
        joined(scheduler, name, 5, 5, now_s=float(number))
    batch = decode_run.begin(scheduler)
    assert batch is not None
    assert names(batch) == names(scheduler.running) == [*"abcd"]
    assert names(scheduler.joined) == [*"ef"]
    assert decode_run.end(scheduler, batch) == []
    assert [each.output for each in batch] == [[50, 50]] * 4
    again = decode_run.begin(scheduler)
    assert again is not None
    assert names(again) == [*"abcd"]


def test_blocks_that_are_there_are_enough_and_one_too_few_is_none_of_its_affairs() -> None:
    for spare, is_plain in ((2, True), (1, False)):
        scheduler = small_scheduler()
        for name in "ab":
            joined(scheduler, name, 7, 7)
        stepped(scheduler)  # the last token of their second blocks
        occupy(scheduler, scheduler.pool.num_available - spare)
        before = state_of(scheduler)
        batch = decode_run.begin(scheduler)
        assert (batch is not None) == is_plain
        if batch is None:
            assert state_of(scheduler) == before
        else:
            assert [len(each.block_table) for each in batch] == [3, 3]
            assert scheduler.pool.num_available == 0


def beams() -> SamplingParams:
    return SamplingParams(use_beam_search=True, beam_width=2, temperature=0.0, max_tokens=8)


@pytest.mark.parametrize(
    "asked",
    [
        {"unforked": branches(2)},
        {"sampling": beams(), "branches": branches(2)},
        {"sampling": greedy(8, prompt_logprobs=1)},
    ],
)
def test_who_does_not_decode_alone_is_left_to_the_scheduler(asked: dict[str, Any]) -> None:
    scheduler = small_scheduler()
    joined(scheduler, "a", 5, 5)
    sequence = join(scheduler, "b", asked.get("sampling", greedy(8)), 50, branches=asked.get("branches", ()))
    sequence.unforked = asked.get("unforked", ())
    assert not fast_step(scheduler)
    assert names(scheduler.joined) == ["a", "b"]


@pytest.mark.parametrize("bounds", [{"window": 16}, {"num_slots": 4, "spills": True}])
def test_where_blocks_leave_a_sequence_steps_are_left_to_the_scheduler(bounds: dict[str, Any]) -> None:
    scheduler = small_scheduler(**bounds)
    joined(scheduler, "a", 5, 5)
    assert not fast_step(scheduler)
    stepped(scheduler)
    assert not fast_step(scheduler)


def test_while_somebody_waits_or_builds_a_prompt_or_nobody_is_there_a_step_is_not_plain() -> None:
    scheduler = small_scheduler()
    assert not fast_step(scheduler)
    joined(scheduler, "a", 5, 5)
    stepped(scheduler)
    add(scheduler, "b", 20)
    assert not fast_step(scheduler)
    stepped(scheduler)  # of b's prompt a chunk
    assert not scheduler.waiting
    assert not fast_step(scheduler)
    stepped(scheduler, 3)
    assert fast_step(scheduler)


def test_a_prompt_whose_last_token_is_to_be_computed_does_not_decode_yet() -> None:
    scheduler = small_scheduler()
    add(scheduler, "a", 7)
    commit(scheduler, granted(scheduler))  # all but one of seven
    assert scheduler.sequences["a"].num_left == 1
    assert not fast_step(scheduler)


def num_plain(scheduler: Scheduler, batch: list[Sequence]) -> int:
    """Return how many steps there are until somebody has ended or filled a block, by taking them."""
    size = scheduler.limits.block_size
    for number in range(1, 100):
        if decode_run.end(scheduler, batch) or any(each.num_computed % size == 0 for each in batch):
            return number
    raise AssertionError("nobody ends")


@pytest.mark.parametrize(
    ("length", "max_tokens", "bounds", "most"),
    [
        (4, 20, {}, 4),  # a block to be filled
        (5, 20, {}, 3),
        (6, 20, {}, 2),
        (7, 20, {}, 1),
        (4, 4, {}, 3),  # the first of its four tokens is out
        (4, 3, {}, 2),
        (4, 2, {}, 1),
        (4, 20, {"max_model_len": 7}, 2),  # seven tokens in all, of which five are there
        (4, 20, {"max_model_len": 6}, 1),
    ],
)
def test_a_run_lasts_until_somebody_ends_or_fills_a_block(
    length: int, max_tokens: int, bounds: dict[str, Any], most: int
) -> None:
    scheduler, other = small_scheduler(**bounds), small_scheduler(**bounds)
    for each in (scheduler, other):
        joined(each, "a", length, length, max_tokens=max_tokens)
    batch, same = decode_run.begin(scheduler), decode_run.begin(other)
    assert batch is not None
    assert same is not None
    assert decode_run.most_steps(scheduler, batch) == num_plain(other, same) == most
    decode_run.advance(batch, most - 1)
    decode_run.end(scheduler, batch)
    assert state_of(scheduler) == state_of(other)


def test_the_first_to_end_or_to_fill_a_block_ends_a_run() -> None:
    for lengths, most in (((4, 6), 2), ((6, 4), 2), ((4, 7), 1), ((4, 4), 4)):
        scheduler = small_scheduler()
        for name, length in zip("ab", lengths, strict=True):
            joined(scheduler, name, length, length)
        batch = decode_run.begin(scheduler)
        assert batch is not None
        assert decode_run.most_steps(scheduler, batch) == most


def test_each_sequence_says_its_own_token_again_and_goes_with_its_last() -> None:
    scheduler = small_scheduler()
    for name, token, max_tokens in (("a", 60, 4), ("b", 61, 9)):
        join(scheduler, name, greedy(max_tokens), token)
    batch = decode_run.begin(scheduler)
    assert batch is not None
    decode_run.advance(batch, 1)
    assert [each.output for each in batch] == [[60, 60], [61, 61]]
    decode_run.advance(batch, 1)
    assert [each.output for each in batch] == [[60] * 3, [61] * 3]
    assert names(decode_run.end(scheduler, batch)) == ["a"]
    assert [each.output for each in batch] == [[60] * 4, [61] * 4]
    assert names(scheduler.running) == [*scheduler.sequences] == ["b"]
