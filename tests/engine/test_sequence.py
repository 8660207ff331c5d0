"""One sequence by itself: its tokens, its hashes, what it has left to do, and what another takes over from it."""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import ROOT, greedy
from lone_sequences import lone_sequence

from pagewire.core.block_hash import chain, extend
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import Branch, branches
from pagewire.engine.beam_search import BeamSearch
from pagewire.engine.block import NO_BLOCK
from pagewire.engine.group import Group
from pagewire.engine.sequence import Sequence, State, finish_reason
from pagewire.engine.step import Draw, Scoring

PROMPT, OUTPUT = tuple(range(10, 20)), (30, 31, 32)
ALL = PROMPT + OUTPUT


def test_a_new_sequence_waits_and_has_nothing() -> None:
    sequence = lone_sequence(PROMPT)
    assert sequence.state is State.WAITING
    counts = (
        sequence.num_computed, sequence.num_saved, sequence.num_gone, sequence.promised, sequence.num_registered,
        sequence.reported_blocks, sequence.num_scored,
    )  # fmt: skip
    assert counts == (0,) * 7
    assert (sequence.num_prompt, sequence.num_tokens, sequence.num_left, sequence.num_seats) == (10, 10, 10, 1)
    assert Sequence(
        spec=sequence.spec, group=sequence.group, name="r", index=0, num_given=10, arrival=0, block_size=4
    ).arrived_s == 0.0  # fmt: skip


def test_tokens_are_those_of_prompt_and_output() -> None:
    sequence = lone_sequence(PROMPT, output=OUTPUT)
    assert (sequence.num_prompt, sequence.num_tokens) == (10, 13)
    for start in range(14):
        for stop in range(start, 14):
            assert sequence.tokens(start, stop) == ALL[start:stop]


@pytest.mark.parametrize(
    ("computed", "saved", "left", "is_decoding"),
    [(0, 0, 13, False), (11, 0, 2, False), (12, 0, 1, True), (13, 0, 0, False), (4, 9, 4, False), (0, 12, 1, False)],
)
def test_what_is_left_counts_from_what_is_computed_or_saved(
    computed: int, saved: int, left: int, is_decoding: bool
) -> None:
    sequence = lone_sequence(PROMPT, output=OUTPUT, num_computed=computed, num_saved=saved)
    assert (sequence.num_left, sequence.is_decoding) == (left, is_decoding)


def test_blocks_leave_the_table_from_its_beginning() -> None:
    sequence = lone_sequence(PROMPT, block_table=[5, 6, 7, 8])
    assert list(sequence.let_go(1)) == [5]
    assert list(sequence.let_go(2)) == [6, 7]
    assert list(sequence.block_table) == [NO_BLOCK, NO_BLOCK, NO_BLOCK, 8]
    assert (sequence.num_gone, list(sequence.held)) == (3, [8])


def test_places_are_its_own_and_those_of_who_forks_off() -> None:
    assert lone_sequence(PROMPT, unforked=branches(4)).num_seats == 4


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_the_chain_is_that_of_its_tokens_however_far_it_was_known(first: int) -> None:
    expected = chain(ROOT, ALL, 4)
    sequence = lone_sequence(PROMPT, output=OUTPUT)
    assert sequence.chain(first) == expected[:first]
    assert sequence.chain(3) == expected
    assert sequence.chain(1) == expected[:1]
    assert sequence.hashes == expected
    assert [sequence.parent_of(depth) for depth in range(4)] == [None, *expected]


def test_the_tail_is_named_by_what_is_before_it() -> None:
    sequence, full = lone_sequence(PROMPT, output=OUTPUT), chain(ROOT, ALL, 4)
    assert [sequence.tail_hash(count) for count in (0, 4, 8, 12)] == [None] * 4
    assert sequence.tail_hash(3) == extend(ROOT, ALL[:3])
    assert sequence.tail_hash(5) == extend(full[0], ALL[4:5])
    assert sequence.tail_hash(11) == extend(full[1], ALL[8:11])
    assert sequence.tail_hash(13) == extend(full[2], ALL[12:13])


@pytest.mark.parametrize(
    ("length", "scored", "count"),
    [(8, None, 1), (9, None, 2), (10, None, 2), (10, 0, 0), (10, 4, 1), (10, 8, 2), (10, 9, 2), (9, 7, 1), (9, 8, 2)],
)
def test_a_cache_serves_no_block_whose_logits_are_needed(length: int, scored: int | None, count: int) -> None:
    """The last token's are, and those of prompts whose log probabilities are asked for and not out."""
    asked = greedy(20) if scored is None else greedy(20, prompt_logprobs=1)
    sequence = lone_sequence(range(length), asked, num_scored=scored or 0)
    assert sequence.num_to_score == (0 if scored is None else length - 1 - scored)
    assert sequence.hit_chain() == chain(ROOT, range(length), 4)[:count]


def test_a_sibling_begins_with_the_prompt_and_with_its_own_output() -> None:
    first = lone_sequence(PROMPT, output=OUTPUT, block_table=[1, 2, 3], num_computed=12)
    other = first.sibling(Branch(index=2, output=(41, 42)))
    assert (other.spec, other.group, other.name, other.index) == (first.spec, first.group, "r\x1f2", 2)
    assert (other.arrival, other.arrived_s, other.block_size, other.num_given) == (7, 2.5, 4, 10)
    assert (other.output, list(other.block_table), other.num_computed) == ([41, 42], [], 0)
    assert other.num_scored == 9, "the first says what there is to say of the prompt"


@pytest.mark.parametrize(("common", "table", "full"), [(8, 2, 2), (9, 3, 2), (10, 3, 2), (12, 3, 3), (3, 1, 0)])
def test_a_fork_has_what_is_common_and_no_more(common: int, table: int, full: int) -> None:
    first = lone_sequence(
        PROMPT, output=OUTPUT, block_table=[NO_BLOCK, 2, 3, 4], num_gone=1, num_computed=13, num_registered=2
    )
    expected = first.chain(3)[:full]
    forked = first.forked(Branch(index=1), common)
    assert (list(forked.block_table), forked.num_gone) == ([NO_BLOCK, 2, 3, 4][:table], 1)
    assert (forked.num_computed, forked.num_registered, forked.hashes) == (common, min(full, 2), expected)
    assert (forked.name, forked.output) == ("r\x1f1", [])


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        ((1,) * 12, (1,) * 12, 8),  # the last token is computed
        ((1,) * 13, (1,) * 12, 12),
        ((1,) * 13, (1,) * 11, 8),
        ((1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1), (1, 1, 1, 1, 3, 2, 2, 2, 1, 1, 1, 1), 4),
        ((2,) * 12, (1,) * 12, 0),
    ],
)
def test_what_two_have_in_common_is_their_beginning_in_full_blocks(
    ours: tuple[int, ...], theirs: tuple[int, ...], common: int
) -> None:
    assert lone_sequence(ours).num_common_with(lone_sequence(theirs)) == common


def test_a_draw_names_the_place_and_has_tokens_only_where_they_are_read() -> None:
    plain, folding = greedy(20), greedy(20, repetition_penalty=1.5)
    sequence = lone_sequence(PROMPT, plain, output=OUTPUT, index=3)
    assert sequence.draw() == Draw(sampling=plain, index=3, position=3)
    assert sequence.draw(5) == Draw(sampling=plain, index=5, position=3)
    assert sequence.draw(0).index == 0
    assert lone_sequence(PROMPT, folding, output=OUTPUT).draw() == Draw(
        sampling=folding, index=0, position=3, prompt=PROMPT, output=OUTPUT
    )


def test_a_beam_asks_for_candidates() -> None:
    asked = SamplingParams(use_beam_search=True, beam_width=2, temperature=0.0, max_tokens=5)
    group = Group(request_id="r", search=BeamSearch.of(asked, 5, frozenset({99})))
    assert lone_sequence(PROMPT, asked, group=group).draw().num_candidates == 3


@pytest.mark.parametrize(
    ("start", "stop", "scored", "expected"),
    [
        (0, 4, 0, (0, (11, 12, 13, 14))),
        (4, 10, 4, (0, (15, 16, 17, 18, 19))),  # nothing in the prompt comes after its last token
        (0, 10, 4, (4, (15, 16, 17, 18, 19))),  # computed again after a preemption
        (4, 8, 8, None),
        (4, 8, 7, (3, (18,))),
        (8, 9, 8, (0, (19,))),
        (9, 10, 9, None),
        (10, 11, 9, None),
    ],
)
def test_each_token_of_the_prompt_is_scored_once(
    start: int, stop: int, scored: int, expected: tuple[int, tuple[int, ...]] | None
) -> None:
    sequence = lone_sequence(PROMPT, greedy(20, prompt_logprobs=2), output=OUTPUT, num_scored=scored)
    wanted = None if expected is None else Scoring(first_row=expected[0], targets=expected[1], num_top=2)
    assert sequence.scoring(start, stop) == wanted
    assert lone_sequence(PROMPT, output=OUTPUT).scoring(start, stop) is None


@pytest.mark.parametrize(
    ("output", "num_prompt", "asked", "reason"),
    [
        ((99,), 5, {}, FinishReason.STOP),
        ((99, 1), 5, {}, None),
        ((1, 99), 5, {}, FinishReason.STOP),
        ((99,), 5, {"ignore_eos": True}, None),
        ((99,), 5, {"ignore_eos": True, "max_tokens": 1}, FinishReason.LENGTH),
        ((1, 8), 5, {"stop_token_ids": (8,), "ignore_eos": True}, FinishReason.STOP),
        ((8, 1), 5, {"stop_token_ids": (8,)}, None),
        ((1, 2, 3), 5, {}, None),
        ((1, 2, 3, 4), 5, {}, FinishReason.LENGTH),
        ((1, 2, 3, 4, 5), 5, {}, FinishReason.LENGTH),
        ((1, 2), 98, {}, FinishReason.LENGTH),
        ((1, 2), 99, {}, FinishReason.LENGTH),
        ((1, 2), 97, {}, None),
    ],
)
def test_a_sequence_ends_by_its_last_token_or_its_length(
    output: tuple[int, ...], num_prompt: int, asked: dict[str, Any], reason: FinishReason | None
) -> None:
    sampling = SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **asked})
    assert finish_reason(list(output), num_prompt, sampling, frozenset({99}), 100) is reason
