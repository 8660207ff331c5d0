"""Single steps of a scheduler, to the token: who is known to it, who computes what, and what it tells of itself.

Blocks hold 4 tokens; a step has 12, a chunk 6, a batch 4 sequences. Each draw is of token 50.
"""

from __future__ import annotations

import pytest
from engine_runs import greedy, spec
from lone_sequences import add, asked, commit, granted, joined, names, small_scheduler, stepped, warm

from pagewire.core.block_hash import chain
from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import branches
from pagewire.engine import hold, reservation
from pagewire.engine.block import table_of
from pagewire.engine.sequence import State
from pagewire.engine.step import Draw, Grant, Scoring
from pagewire.engine.step_cost import StepShape

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
        request_id="a", tokens=tuple(range(10, 16)), start=0, block_ids=table_of(table[:2]), draw=None,
        scoring=Scoring(first_row=0, targets=tuple(range(11, 17)), num_top=1),
    )  # fmt: skip
    commit(scheduler, [first], {})
    (second,) = granted(scheduler)

    def draw(index: int) -> Draw:
        return Draw(sampling=sampling, index=index, position=0, prompt=tuple(range(10, 19)))

    assert second == Grant(
        request_id="a", tokens=(16, 17, 18), start=6, block_ids=table_of(table), draw=draw(0), forks=(draw(1),),
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


def test_blocks_that_nobody_holds_are_counted_among_those_of_sequences_and_holds() -> None:
    scheduler = small_scheduler(window=4)
    add(scheduler, "r", 20)
    for _ in range(3):
        stepped(scheduler)
    assert scheduler.sequences["r"].num_gone > 0
    scheduler.holds["h"] = scheduler.pool.allocate(2)
    assert scheduler.num_orphaned() == 0
    lost = scheduler.pool.allocate(3)
    assert scheduler.num_orphaned() == 3
    scheduler.pool.release(lost)
    assert scheduler.num_orphaned() == 0
