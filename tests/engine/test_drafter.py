"""What is drafted is what followed the longest run where it stood last, whatever the sequence and however it grew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine.drafter import LENGTHS, PRIOR, WEIGHT, Drafter

TOKENS = st.lists(st.integers(0, 2), max_size=60)


def naively(tokens: list[int], most: int) -> tuple[int, ...]:
    """Look every run up anew, and go on token by token."""
    for length in LENGTHS:
        run = tokens[-length:]
        ends = [end for end in range(length, len(tokens)) if tokens[end - length : end] == run]
        if len(run) == length and ends:
            longer = list(tokens)
            for place in range(most):
                longer.append(longer[ends[-1] + place])
            return tuple(longer[len(tokens) :])
    return ()


@given(
    prompt=TOKENS.filter(bool), output=TOKENS, steps=st.lists(st.integers(1, 9), max_size=20), most=st.integers(1, 9)
)
def test_it_is_what_a_naive_search_finds(prompt: list[int], output: list[int], steps: list[int], most: int) -> None:
    drafter = Drafter(prompt)
    known = 0
    for step in (0, *steps):
        known = min(len(output), known + step)
        assert drafter.draft(output[:known], most) == naively([*prompt, *output[:known]], most)


def test_a_period_is_continued() -> None:
    assert Drafter([7, 1, 2, 1, 2]).draft((), 5) == (1, 2, 1, 2, 1)
    assert Drafter([1, 2, 3]).draft((), 5) == ()
    assert Drafter([5]).draft((), 5) == ()


def test_what_proves_right_is_told_apart_by_the_run_that_it_was_found_behind() -> None:
    drafter = Drafter([1, 2, 3, 4, 8, 2, 3])
    assert drafter.draft((), 2) == (4, 8)  # behind 2, 3
    drafter.hear(0, has_wrong=True)
    assert drafter.acceptance == pytest.approx(PRIOR * (1 - WEIGHT))
    assert drafter.draft((4,), 2) == (8, 2)  # behind 2, 3, 4
    assert drafter.acceptance == PRIOR
    drafter.hear(2, has_wrong=False)
    assert drafter.acceptance == pytest.approx(1 - (1 - PRIOR) * (1 - WEIGHT) ** 2)
