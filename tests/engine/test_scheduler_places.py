"""Places in a scheduler's batch: who has one, who waits for one, and for whom one is kept.

Blocks hold 4 tokens; a step has 12, a chunk 6, a batch 4 sequences. Each draw is of token 50.
"""

from __future__ import annotations

import pytest
from lone_sequences import add, granted, joined, names, small_scheduler, stepped

from pagewire.core.sequence_spec import branches
from pagewire.engine.sequence import State

Asked = list[tuple[str, int, int]]


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
