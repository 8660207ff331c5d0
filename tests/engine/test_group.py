"""The sequences of one request: who is a member, and what becomes of one whose index is stopped."""

from __future__ import annotations

import pytest
from lone_sequences import lone_sequence

from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import Branch, branches
from pagewire.engine.beam_search import BeamSearch
from pagewire.engine.group import Group


def test_a_member_is_found_by_its_index_until_it_is_gone() -> None:
    group = Group(request_id="r")
    first, second = lone_sequence([1], group=group), lone_sequence([1], group=group, index=4)
    assert (group.member(0), group.member(4), group.member(1)) == (first, second, None)
    assert (group.cached_tokens, group.fetched_tokens, group.computed_tokens, group.search) == (None, 0, 0, None)


@pytest.mark.parametrize(
    ("stopped", "left"), [(0, [1, 2]), (1, [0, 2]), (2, [0, 1]), (3, [0, 1, 2])], ids=["itself", "1", "2", "nobody"]
)
def test_before_the_fork_one_less_forks_off(stopped: int, left: list[int]) -> None:
    group = Group(request_id="r")
    sequence = lone_sequence([1], group=group, unforked=branches(3))
    assert group.stop(stopped) is None
    assert [sequence.index, *(each.index for each in sequence.unforked)] == left


def test_where_one_is_left_it_goes_on_by_itself() -> None:
    group = Group(request_id="r")
    sequence = lone_sequence([1], group=group, unforked=branches(2))
    assert group.stop(0) is None
    assert (sequence.index, sequence.unforked) == (1, ())


def test_the_last_one_and_those_that_have_forked_are_to_be_removed() -> None:
    group = Group(request_id="r")
    first, other = lone_sequence([1], group=group), lone_sequence([1], group=group, index=1)
    assert group.stop(0) is first
    assert group.stop(1) is other
    assert group.stop(2) is None
    assert (first.index, other.index) == (0, 1)


def test_of_a_search_no_beam_is_stopped_by_itself() -> None:
    asked = SamplingParams(use_beam_search=True, beam_width=2, temperature=0.0)
    group = Group(request_id="r", search=BeamSearch.of(asked, 5, frozenset()))
    beam = lone_sequence([1], asked, group=group, unforked=(Branch(index=1),))
    assert (group.stop(0), group.stop(1)) == (None, None)
    assert (beam.index, beam.unforked, group.members) == (0, (Branch(index=1),), [beam])
