"""What is drafted is what followed the last tokens where they stood last, whatever the sequence and however it grew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine.drafter import FORCED, LONGEST, PRIOR, RUN, WEIGHT, Acceptance, Drafter

TOKENS = st.lists(st.integers(0, 2), max_size=60)


def naively(tokens: list[int], most: int) -> tuple[tuple[int, ...], int]:
    """Look the run up anew, and go on token by token; say how long it is, too."""
    ends = [end for end in range(RUN, len(tokens)) if tokens[end - RUN : end] == tokens[-RUN:]]
    if not ends:
        return (), 0
    longer = list(tokens)
    for place in range(most):
        longer.append(longer[ends[-1] + place])
    lengths = [n for n in range(RUN, min(LONGEST, ends[-1]) + 1) if tokens[ends[-1] - n : ends[-1]] == tokens[-n:]]
    return tuple(longer[len(tokens) :]), lengths[-1]


@given(
    prompt=TOKENS.filter(bool), output=TOKENS, steps=st.lists(st.integers(1, 9), max_size=20), most=st.integers(1, 9)
)
def test_it_is_what_a_naive_search_finds(prompt: list[int], output: list[int], steps: list[int], most: int) -> None:
    drafter = Drafter(prompt)
    known = 0
    for step in (0, *steps):
        known = min(len(output), known + step)
        found = drafter.draft(output[:known], most)
        assert (found, drafter.length if found else 0) == naively([*prompt, *output[:known]], most)


def test_a_period_is_continued() -> None:
    assert Drafter([7, 1, 2, 1, 2]).draft((), 5) == (1, 2, 1, 2, 1)
    assert Drafter([1, 2, 3]).draft((), 5) == ()
    assert Drafter([5]).draft((), 5) == ()
    assert Drafter([5, 5, 5]).draft((), 2) == (5, 5)


def test_runs_longer_than_the_longest_are_not_told_apart() -> None:
    drafter = Drafter([1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5, 6])
    assert drafter.draft((), 1) == (9,)
    assert drafter.length == 4


@given(heard=st.lists(st.tuples(st.integers(RUN, LONGEST), st.integers(0, 9), st.booleans()), max_size=50))
def test_a_share_is_one_and_half_until_anything_is_known(heard: list[tuple[int, int, bool]]) -> None:
    acceptance = Acceptance()
    assert {acceptance.of(length) for length in (FORCED, *range(RUN, LONGEST + 1))} == {0.5}
    for length, num_right, has_wrong in heard:
        acceptance.hear(length, num_right, has_wrong=has_wrong)
        assert 0.0 <= acceptance.of(length) <= 1.0


def test_what_proves_right_is_told_apart_by_the_length_of_the_run() -> None:
    drafter = Drafter([1, 2, 3, 4, 8, 2, 3])
    assert drafter.draft((), 2) == (4, 8)
    assert drafter.length == 2  # 2, 3
    assert drafter.draft((4,), 2) == (8, 2)
    assert drafter.length == 3  # 2, 3, 4
    drafter.acceptance.hear(2, 0, has_wrong=True)
    drafter.acceptance.hear(3, 2, has_wrong=False)
    other = Drafter([1], drafter.acceptance)
    for each in (drafter, other):
        assert each.acceptance.of(2) == pytest.approx(PRIOR * (1 - WEIGHT))
        assert each.acceptance.of(3) == pytest.approx(1 - (1 - PRIOR) * (1 - WEIGHT) ** 2)
        assert each.acceptance.of(4) == PRIOR
    other.acceptance.hear(4, 0, has_wrong=True)
    assert drafter.acceptance.of(4) == PRIOR
