"""Single steps of a scheduler, to the token and the block: who computes what, who waits for what, who gives way.

Blocks hold 4 tokens; a step has 12, a chunk 6, a batch 4 sequences. Each draw is of token 50.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import greedy, spec
from lone_sequences import commit, granted, occupy, small_scheduler, stepped, warm

from pagewire.core.block_hash import chain
from pagewire.core.engine_messages import Join
from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import Branch, SequenceSpec, branches
from pagewire.engine import hold, reservation
from pagewire.engine.beam_search import Candidates
from pagewire.engine.block import NO_BLOCK
from pagewire.engine.moves import Move, Way
from pagewire.engine.preemption import PreemptionMode
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence, State
from pagewire.engine.step import Computed, Draw, Grant, Scoring
from pagewire.engine.step_cost import StepShape

Asked = list[tuple[str, int, int]]


def asked(name: str, length: int, max_tokens: int = 20, **changes: Any) -> SequenceSpec:
    """Return a request whose tokens nobody else's begin with."""
    return spec(name, [ord(name[0]) - 96, *[1] * (length - 1)], greedy(max_tokens), **changes)


def add(scheduler: Scheduler, name: str, length: int, now_s: float = 0.0, **changes: Any) -> Sequence:
    scheduler.add(asked(name, length, **changes), now_s=now_s)
    return scheduler.sequences[name]


def joined(scheduler: Scheduler, name: str, length: int, landed: int, now_s: float = 0.0, **changes: Any) -> Sequence:
    """Let a request join with its first token, of whose prompt `landed` tokens came from elsewhere."""
    reservation.reserve(scheduler, asked(name, length, **changes), now_s=now_s)
    reservation.bind(scheduler, name, scheduler.limits.num_blocks(length))
    message = Join(request_id=name, num_computed=landed, output=(50,))
    sequence = reservation.join(scheduler, message)
    assert sequence is not None
    return sequence


def names(sequences: list[Sequence]) -> list[str]:
    return [each.name for each in sequences]


# --------------------------------------------------------------------------------------------------------- who is known


def test_a_new_request_waits_with_what_it_came_with() -> None:
    scheduler = small_scheduler()
    first = add(scheduler, "a", 5, now_s=2.0)
    scheduler.add(asked("b", 5, output=(7, 8), index=3, branches=()), first_block=2, now_s=1.0)
    second = scheduler.sequences["b"]
    assert (first.num_given, first.arrival, first.arrived_s, first.index, first.reported_blocks) == (5, 0, 2.0, 0, 0)
    assert (second.num_given, second.arrival, second.arrived_s, second.index) == (7, 1, 1.0, 3)
    assert (second.reported_blocks, second.output, second.block_size, second.name) == (2, [7, 8], 4, "b")
    assert names(scheduler.waiting) == ["b", "a"]
    assert scheduler.groups == {"a": first.group, "b": second.group}
    assert (first.group.request_id, first.group.members, first.group.search) == ("a", [first], None)
    counts = scheduler.num_preemptions, scheduler.num_swaps, scheduler.num_prompt_tokens, scheduler.num_cached_tokens
    assert (counts, scheduler.num_pinned_tokens, scheduler.preempted) == ((0, 0, 0, 0), 0, [])


def test_a_request_that_names_no_time_came_at_none() -> None:
    scheduler = small_scheduler()
    scheduler.add(asked("a", 5))
    assert scheduler.sequences["a"].arrived_s == scheduler.admit_spec(asked("b", 5)).arrived_s == 0.0


def test_a_name_is_one_request_or_one_hold() -> None:
    scheduler = small_scheduler()
    warm(scheduler, range(8))
    assert hold.hold(scheduler, "h", chain(spec("x", [1], greedy(1)).root, range(8), 4))
    add(scheduler, "a", 5)
    for name in ("a", "h"):
        with pytest.raises(InvalidRequest, match="here already"):
            add(scheduler, name, 5)


def test_pinned_blocks_are_not_to_be_had() -> None:
    scheduler = small_scheduler(4)
    add(scheduler, "a", 12)
    scheduler.remove_request("a")
    warm(scheduler, range(4))
    hold.pin(scheduler, chain(spec("x", [1], greedy(1)).root, range(4), 4))
    with pytest.raises(InvalidRequest):
        add(scheduler, "a", 12)
    add(scheduler, "a", 11)


def test_host_memory_counts_where_sequences_spill() -> None:
    scheduler = small_scheduler(4, num_slots=3, spills=True)
    scheduler.add(asked("a", 8, 20))
    with pytest.raises(InvalidRequest):
        scheduler.add(asked("b", 8, 21))


def test_what_hands_off_keeps_its_blocks_whole() -> None:
    bounds = small_scheduler(role=Role.PREFILL, window=8).limits
    assert (bounds.window, bounds.spills) == (0, False)
    bounds = small_scheduler(role=Role.PREFILL, spills=True).limits
    assert (bounds.window, bounds.spills) == (0, False)
    assert small_scheduler(window=8).limits.window == 8
    assert small_scheduler(spills=True).limits.spills


def test_a_search_is_bounded_by_the_answer_and_the_model() -> None:
    scheduler = small_scheduler(40, eos_token_ids=frozenset({9}))
    beams = SamplingParams(use_beam_search=True, beam_width=2, temperature=0.0, max_tokens=7)
    for name, length, limit in (("a", 5, 7), ("b", 36, 4)):
        scheduler.add(spec(name, [1] * length, beams, branches=branches(2)))
        search = scheduler.groups[name].search
        assert search is not None
        assert (search.limit, search.ends, search.width) == (limit, {9}, 2)


def test_what_is_removed_is_forgotten_wherever_it_was() -> None:
    scheduler = small_scheduler()
    add(scheduler, "r", 9)
    decoding = add(scheduler, "s", 3, branches=branches(2))
    stepped(scheduler)
    later, waiting = joined(scheduler, "j", 5, 5), add(scheduler, "w", 9)
    reservation.reserve(scheduler, asked("k", 9))
    promised = scheduler.sequences["k"]
    assert (names(scheduler.running), scheduler.joined, scheduler.waiting) == (
        ["r", "s", "s\x1f1"], [later], [waiting],
    )  # fmt: skip
    assert (scheduler.pool.num_held, scheduler.pool.num_reserved) == (3 + 1 + 2, 4)
    assert [len(table) for table in scheduler.tables()] == [3, 1, 1, 2, 0, 0]
    for name in ("r", "j", "w", "k"):
        assert scheduler.remove_request(name) is True
        assert name not in scheduler.sequences.keys() | scheduler.groups.keys()
    assert scheduler.remove_request("r") is False
    assert (names(scheduler.running), scheduler.joined, scheduler.waiting) == (["s", "s\x1f1"], [], [])
    assert (scheduler.pool.num_held, scheduler.pool.num_reserved) == (1, 0)
    scheduler.remove(decoding)
    assert list(scheduler.groups) == ["s"]
    assert scheduler.remove_request("s") is True
    assert (scheduler.groups, scheduler.pool.num_held) == ({}, 0)
    assert promised.promised == 0


# ---------------------------------------------------------------------------------------------------- the step's tokens


def test_decodes_come_first_then_running_prompts_then_new_ones() -> None:
    scheduler = small_scheduler()
    add(scheduler, "a", 3)
    assert stepped(scheduler) == [[("a", 0, 3)]]
    for name in "bcd":
        add(scheduler, name, 10)
    assert stepped(scheduler, 5) == [
        [("a", 3, 1), ("b", 0, 6), ("c", 0, 5)],
        [("a", 4, 1), ("b", 6, 4), ("c", 5, 5), ("d", 0, 2)],
        [("a", 5, 1), ("b", 10, 1), ("c", 10, 1), ("d", 2, 6)],
        [("a", 6, 1), ("b", 11, 1), ("c", 11, 1), ("d", 8, 2)],
        [("a", 7, 1), ("b", 12, 1), ("c", 12, 1), ("d", 10, 1)],
    ]


def test_prompts_have_no_more_than_they_may_and_decodes_go_on() -> None:
    scheduler = small_scheduler()
    add(scheduler, "a", 3)
    stepped(scheduler)
    add(scheduler, "b", 6)
    last = add(scheduler, "c", 6)
    for most, expected in (
        (4, [("a", 3, 1), ("b", 0, 4)]),
        (1, [("a", 4, 1), ("b", 4, 1)]),
        (1, [("a", 5, 1), ("b", 5, 1), ("c", 0, 1)]),  # one token of a prompt that is left is as a decode's
        (None, [("a", 6, 1), ("b", 6, 1), ("c", 1, 5)]),
    ):
        grants = granted(scheduler, most)
        assert [(each.request_id, each.start, len(each.tokens)) for each in grants] == expected
        assert (last.state is State.RUNNING) is bool(last.block_table) is (len(expected) == 3)
        commit(scheduler, grants)


def test_who_runs_is_ordered_anew_where_ranks_fall() -> None:
    """By what is left: the later and shorter one goes first, until both decode."""
    scheduler = small_scheduler(scheduling="srpt")
    add(scheduler, "a", 12, now_s=0.0)
    add(scheduler, "b", 8, now_s=0.003)
    assert stepped(scheduler, 3) == [
        [("b", 0, 6), ("a", 0, 6)],
        [("b", 6, 2), ("a", 6, 6)],
        [("a", 12, 1), ("b", 8, 1)],
    ]


def test_a_rank_is_when_it_came_with_its_handicap_then_its_number_then_its_index() -> None:
    scheduler = small_scheduler(scheduling="priority")
    first, second = (
        add(scheduler, "a", 3, now_s=1.5, priority=1),
        add(scheduler, "b", 3, now_s=1.0, branches=branches(2)),
    )
    assert scheduler.rank(first) == (1.5 + 101 * 5.0, 0, 0)
    assert scheduler.rank(second) == (1.0 + 100 * 5.0, 1, 0)
    stepped(scheduler)
    assert scheduler.rank(scheduler.sequences["b\x1f1"]) == (501.0, 1, 1)
    by_length = small_scheduler(scheduling="srpt")
    assert by_length.rank(add(by_length, "a", 7)) == (0.007, 0, 0)


def test_a_grant_says_all_that_a_step_needs() -> None:
    scheduler = small_scheduler()
    sampling = greedy(9, repetition_penalty=1.5, prompt_logprobs=1)
    scheduler.add(spec("a", range(10, 19), sampling, branches=branches(2)))
    (first,) = granted(scheduler)
    table = tuple(scheduler.sequences["a"].block_table)
    assert first == Grant(
        request_id="a", tokens=tuple(range(10, 16)), start=0, block_ids=table[:2], draw=None,
        scoring=Scoring(first_row=0, targets=tuple(range(11, 17)), num_top=1),
    )  # fmt: skip
    commit(scheduler, [first], {})
    (second,) = granted(scheduler)

    def draw(index: int) -> Draw:
        return Draw(sampling=sampling, index=index, position=0, prompt=tuple(range(10, 19)))

    assert second == Grant(
        request_id="a", tokens=(16, 17, 18), start=6, block_ids=table, draw=draw(0), forks=(draw(1),),
        scoring=Scoring(first_row=0, targets=(17, 18), num_top=1),
    )  # fmt: skip


def test_the_last_chunk_of_what_hands_off_is_sealed() -> None:
    scheduler = small_scheduler(role=Role.PREFILL)
    add(scheduler, "a", 9)
    seals = []
    for _ in range(2):
        grants = granted(scheduler)
        seals += [each.seal for each in grants]
        commit(scheduler, grants)
    assert seals == [False, True]
    assert (granted(scheduler), scheduler.running, scheduler.sequences["a"].state) == ([], [], State.HANDED_OFF)
    decode = small_scheduler()
    add(decode, "a", 3)
    assert [each.seal for each in granted(decode)] == [False]


# ---------------------------------------------------------------------------------------------------- places in a batch


@pytest.mark.parametrize(("n", "starts"), [(3, True), (4, False)])
def test_a_request_starts_with_a_place_for_each_of_its_sequences_and_nobody_passes_it(n: int, starts: bool) -> None:
    scheduler = small_scheduler()
    add(scheduler, "a", 3)
    stepped(scheduler)
    add(scheduler, "n", 3, branches=branches(n))
    add(scheduler, "z", 3)
    expected: Asked = [("a", 3, 1), ("n", 0, 3)] if starts else [("a", 3, 1)]
    assert stepped(scheduler) == [expected]
    scheduler.remove_request("a")
    assert len(stepped(scheduler)[0]) == (4 if starts else 1)


def test_places_are_kept_for_those_that_fork_off_what_still_runs() -> None:
    scheduler = small_scheduler()
    add(scheduler, "n", 9, branches=branches(3))
    add(scheduler, "a", 3)
    add(scheduler, "b", 3)
    assert stepped(scheduler, 3) == [
        [("n", 0, 6), ("a", 0, 3)],
        [("a", 3, 1), ("n", 6, 3)],
        [("n", 9, 1), ("n\x1f1", 9, 1), ("n\x1f2", 9, 1), ("a", 4, 1)],
    ]
    assert names(scheduler.waiting) == ["b"]


@pytest.mark.parametrize(("waits_s", "joins_s", "first"), [(1.0, 2.0, "w"), (2.0, 1.0, "j")])
def test_a_place_goes_to_the_first_in_rank_of_those_that_wait_and_that_joined(
    waits_s: float, joins_s: float, first: str
) -> None:
    scheduler = small_scheduler(max_num_seqs=1)
    add(scheduler, "w", 3, now_s=waits_s)
    joined(scheduler, "j", 5, 5, now_s=joins_s)
    assert [[each[0] for each in step] for step in stepped(scheduler, 2)] == [[first], [first]]


def test_of_those_that_joined_the_first_is_compared_with_who_waits() -> None:
    scheduler = small_scheduler(max_num_seqs=1)
    add(scheduler, "w", 3, now_s=2.0)
    for name, now_s in (("i", 1.0), ("j", 3.0)):
        joined(scheduler, name, 5, 5, now_s=now_s)
    assert stepped(scheduler) == [[("i", 5, 1)]]


def test_who_joined_decodes_beside_prompts_and_computes_what_did_not_land() -> None:
    scheduler = small_scheduler()
    whole, part = joined(scheduler, "j", 5, 5), joined(scheduler, "k", 9, 4)
    assert names(scheduler.joined) == ["j", "k"]
    assert [each.state for each in (whole, part)] == [State.JOINED] * 2
    grants = granted(scheduler, 1)
    assert [(each.request_id, each.start, len(each.tokens)) for each in grants] == [("j", 5, 1), ("k", 4, 1)]
    assert (scheduler.joined, [each.state for each in (whole, part)]) == ([], [State.RUNNING] * 2)


def test_a_prompt_that_joined_waits_for_its_tokens_and_a_decode_behind_it_does_not() -> None:
    scheduler = small_scheduler()
    add(scheduler, "a", 3, now_s=1.0)
    part, whole = joined(scheduler, "k", 9, 4, now_s=2.0), joined(scheduler, "j", 5, 5, now_s=3.0)
    grants = granted(scheduler, 1)
    assert [(each.request_id, each.start, len(each.tokens)) for each in grants] == [("a", 0, 1), ("j", 5, 1)]
    assert (scheduler.joined, part.state, whole.state) == ([part], State.JOINED, State.RUNNING)


def test_nothing_starts_where_the_step_is_full() -> None:
    scheduler = small_scheduler(max_num_batched_tokens=4)
    add(scheduler, "a", 4)
    add(scheduler, "b", 4)
    assert stepped(scheduler, 2) == [[("a", 0, 4)], [("a", 4, 1), ("b", 0, 3)]]


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
        assert sequence.block_table[:2] == ([] if lacking else blocks)
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
    assert (last.state, last.num_computed, last.num_registered, last.block_table) == (State.WAITING, 0, 0, [])
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
    assert (first.block_table[0], forked.block_table) == (before[0], before)
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
    assert [(each.num_given, each.block_table, each.num_computed) for each in siblings] == [(12, [], 0), (11, [], 0)]
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


# -------------------------------------------------------------------------------------------------------------- figures


def test_what_runs_and_waits_is_counted_in_tokens() -> None:
    scheduler = small_scheduler(window=8)
    assert (scheduler.num_held_tokens(), scheduler.num_waiting_tokens()) == (0, 0)
    assert scheduler.decodes_ahead() == (StepShape(decodes=0, attended=0), 0)
    add(scheduler, "a", 3)
    add(scheduler, "b", 20)
    stepped(scheduler, 2)
    add(scheduler, "c", 7)
    joined(scheduler, "j", 5, 5)
    joined(scheduler, "k", 9, 4)
    # a has 5 tokens, of which 4 are computed; b 12 of 20, the first 4 of which its window passed; j 5 of 6; k 4 of 10
    assert [(each.num_tokens, each.num_computed, each.num_gone) for each in scheduler.sequences.values()] == [
        (5, 4, 0), (20, 12, 1), (7, 0, 0), (6, 5, 0), (10, 4, 0),
    ]  # fmt: skip
    assert scheduler.num_held_tokens() == 4 + 12 - 4 + 5 + 4
    assert scheduler.num_waiting_tokens() == 8 + 7 + 6
    assert scheduler.decodes_ahead() == (StepShape(decodes=2, attended=5 + 6), 12)
    crowd = small_scheduler(max_num_seqs=1)
    add(crowd, "a", 3)
    stepped(crowd)
    joined(crowd, "j", 5, 5)
    assert crowd.decodes_ahead() == (StepShape(decodes=1, attended=4), 0)
    prompt = small_scheduler()
    add(prompt, "a", 8)
    stepped(prompt)
    assert prompt.decodes_ahead() == (StepShape(decodes=0, attended=0), 6)


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
    assert sequence.block_table[:7] == [NO_BLOCK] * 6 + blocks[6:]
    assert (len(sequence.block_table), sequence.num_gone, scheduler.pool.num_held) == (8, 6, 2)
    assert (sequence.group.cached_tokens, scheduler.num_cached_tokens) == (28, 28)


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
    assert scheduler.sequences["l"].block_table[:2] == blocks
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


# ---------------------------------------------------------------------------------------------------------------- beams


def beam(*tokens: int) -> Computed:
    return Computed(candidates=Candidates(tokens=tokens, logprobs=tuple(-1.0 - place for place in range(len(tokens)))))


def search(scheduler: Scheduler, width: int = 2, **changes: Any) -> None:
    sampling = SamplingParams(use_beam_search=True, beam_width=width, temperature=0.0, max_tokens=8)
    scheduler.add(spec("s", [1] * 5, sampling, branches=branches(width), **changes), now_s=5.0)


def beam_steps(scheduler: Scheduler, count: int) -> list[list[str]]:
    """Take steps in which the first beam becomes all, and each goes on by itself then; return who computed."""
    seen = []
    for _ in range(count):
        grants = granted(scheduler)
        seen.append([each.request_id for each in grants])
        for grant in grants:
            told = Computed(token=50) if grant.draw is not None else Computed()
            if grant.draw is not None and grant.draw.num_candidates:
                told = beam(5) if grant.draw.position else beam(5, 6, 7, 8)
            commit(scheduler, [grant], dict.fromkeys(grant.draws(), told))
    return seen


def beams_wait(scheduler: Scheduler, num_free: int = 3, width: int = 2) -> None:
    """Let beams run in `num_free` blocks until some give theirs to the others, which then wait for them."""
    search(scheduler, width)
    occupy(scheduler, scheduler.pool.num_available - num_free)
    while not scheduler.num_preemptions:
        beam_steps(scheduler, 1)


def test_beams_that_wait_for_others_give_way_to_who_goes_first() -> None:
    scheduler = small_scheduler(12)
    beams_wait(scheduler)
    assert beam_steps(scheduler, 1) == [[]]
    add(scheduler, "p", 3, now_s=1.0)
    late = add(scheduler, "q", 2, now_s=9.0)
    assert beam_steps(scheduler, 1) == [["p"]]
    assert (names(scheduler.running), len(scheduler.waiting), scheduler.num_preemptions) == (["p"], 3, 2)
    assert late.state is State.WAITING, "nobody starts where somebody was just preempted"


def test_who_lacks_blocks_after_that_too_waits() -> None:
    scheduler = small_scheduler(12)
    beams_wait(scheduler)
    large = add(scheduler, "p", 13, now_s=1.0)
    assert beam_steps(scheduler, 1) == [[]]
    assert (large.state, large.block_table, scheduler.running) == (State.WAITING, [], [])


@pytest.mark.parametrize(("n", "starts"), [(2, True), (3, True), (4, False)])
def test_beams_that_wait_give_up_their_places_too(n: int, starts: bool) -> None:
    """One decodes, and two of three beams have a place: one more is left. Without the beams there are three."""
    scheduler = small_scheduler(24)
    reservation.reserve(scheduler, asked("o", 2), now_s=1.0)
    reservation.bind(scheduler, "o", 1)
    beams_wait(scheduler, num_free=6, width=3)
    reservation.join(scheduler, Join(request_id="o", num_computed=2, output=(50,)))
    assert beam_steps(scheduler, 1) == [["o"]]
    assert [bool(each.group.search) for each in scheduler.running] == [False, True, True]
    hold.release(scheduler, "hold 0")
    first = add(scheduler, "p", 3, now_s=2.0, branches=branches(n))
    assert beam_steps(scheduler, 1) == [["o", "p"] if starts else ["o"]]
    assert (first.state is State.RUNNING) is starts
    assert not any(each.group.search for each in scheduler.running)


def test_what_was_granted_to_beams_that_give_way_is_taken_back() -> None:
    """Of three beams the second computes its tokens anew, and the third waits, when somebody comes who goes first."""
    scheduler = small_scheduler(20, chunk_size=3)
    search(scheduler, 3)
    occupy(scheduler, scheduler.pool.num_available - 7)
    occupy(scheduler, 3)
    while not scheduler.num_preemptions:
        beam_steps(scheduler, 1)
    assert (len(scheduler.running), len(scheduler.waiting)) == (1, 2)
    occupy(scheduler, scheduler.pool.num_available)  # what the second had computed behind the prompt is gone
    hold.release(scheduler, "hold 1")
    (again,) = beam_steps(scheduler, 1)
    assert [scheduler.sequences[name].num_left for name in again] == [2]
    add(scheduler, "p", 3, now_s=1.0)
    assert beam_steps(scheduler, 1) == [["p"]]


def test_beams_that_wait_do_not_give_way_to_who_comes_later() -> None:
    scheduler = small_scheduler(12)
    beams_wait(scheduler)
    before = scheduler.num_preemptions
    add(scheduler, "p", 3, now_s=9.0)
    assert beam_steps(scheduler, 2) == [[], []]
    assert (len(scheduler.running), scheduler.num_preemptions) == (1, before)


def test_a_beam_that_waits_takes_the_blocks_of_who_joined_behind_it() -> None:
    for joins_s, has_blocks in ((9.0, True), (1.0, False)):
        scheduler = small_scheduler(16, max_num_seqs=2)
        search(scheduler)
        occupy(scheduler, 10)
        reservation.reserve(scheduler, asked("j", 8), now_s=joins_s)
        reservation.bind(scheduler, "j", 3)
        for _ in range(12):
            beam_steps(scheduler, 1)
            if scheduler.num_preemptions:
                break
        (waiting,) = scheduler.waiting
        reservation.join(scheduler, Join(request_id="j", num_computed=8, output=(50,)))
        granted(scheduler)
        assert (waiting.state is State.RUNNING) is has_blocks
        assert (scheduler.sequences["j"].state is State.RUNNING) is not has_blocks
