"""Bounds and counts of blocks, each against a definition that looks at every token."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from lone_sequences import limits

B, CHUNK = 4, 6
WINDOWS = (1, 2, 3, 4, 5, 8, 11)


def seen_blocks(num_computed: int, window: int, last: int) -> set[int]:
    """Return the blocks that tokens behind `num_computed` see, up to position `last`."""
    return {
        position // B
        for token in range(num_computed, last + 1)
        for position in range(max(0, token - window + 1) if window else 0, token + 1)
    }


def test_blocks_hold_tokens() -> None:
    assert [limits().num_blocks(count) for count in range(10)] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize("window", [0, *WINDOWS])
def test_what_is_passed_is_what_no_later_token_sees(window: int) -> None:
    bounds = limits(window=window)
    for num_computed in range(30):
        assert bounds.num_passed(num_computed) == min(seen_blocks(num_computed, window, num_computed + 40))


def test_of_blocks_of_one_token_none_is_passed_before_a_window_is_full() -> None:
    bounds = limits(block_size=1, window=3)
    assert [bounds.num_passed(count) for count in range(6)] == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("window", WINDOWS)
def test_no_chunk_has_a_sequence_hold_more_than_the_most(window: int) -> None:
    bounds = limits(window=window)
    assert bounds.most_held(1000) == -(-(window + CHUNK) // B) + 1
    for num_tokens in range(1, 40):
        steps = itertools.product(range(num_tokens), range(1, CHUNK + 1))
        most = max(len(seen_blocks(done, window, done + n - 1)) for done, n in steps if done + n <= num_tokens)
        assert most <= bounds.most_held(num_tokens) <= bounds.num_blocks(num_tokens)


def test_without_a_window_all_blocks_are_held() -> None:
    assert [limits().most_held(count) for count in (1, 4, 5, 400)] == [1, 1, 2, 100]


def test_a_pool_for_what_spills_holds_a_chunk_from_anywhere_in_a_block() -> None:
    assert [limits(chunk_size=chunk).least_pool for chunk in (1, 4, 5, 9)] == [2, 2, 3, 4]


@pytest.mark.parametrize("window", [0, 1, 5, 8])
def test_forked_sequences_share_full_blocks_and_have_the_rest_each(window: int) -> None:
    bounds = limits(window=window)
    for num_tokens, count, own in itertools.product(range(1, 20), (1, 2, 3), (1, 2, 9)):
        held = {
            (depth if depth < num_tokens // B else (depth, number))
            for number in range(count)
            for depth in range(bounds.num_passed(num_tokens), -(-(num_tokens + own) // B))
        }
        assert bounds.num_forked_blocks(num_tokens, count, own) == len(held)
    assert bounds.num_forked_blocks(8, 2) == bounds.num_forked_blocks(8, 2, 1)
    assert bounds.num_forked_blocks(7, 2) == bounds.num_forked_blocks(7, 2, 1)


def test_an_output_ends_with_the_model_or_as_asked() -> None:
    assert [limits().most_output(10, asked) for asked in (1, 29, 30, 31)] == [1, 29, 30, 30]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_seqs": 13}, "max_num_batched_tokens 12 is below max_num_seqs 13"),
        ({"chunk_size": 0}, "chunk_size must be positive, is 0"),
        ({"spills": True, "window": 1}, "nothing spills"),
    ],
)
def test_bounds_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limits(**changes)


def test_bounds_at_their_border_are_taken_and_are_off_unless_asked_for() -> None:
    bounds = limits(max_num_seqs=12, chunk_size=1)
    assert (bounds.window, bounds.spills, bounds.eos_token_ids) == (0, False, frozenset())
    assert limits(window=1).window == 1
    assert limits(spills=True).spills
