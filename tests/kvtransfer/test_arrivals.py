"""Parts of blocks: claimed once, settled once, asked for once more at most, and whole only together."""

from __future__ import annotations

import pytest

from pagewire.kvtransfer.arrivals import Arrivals


def test_the_end_is_behind_the_last_block_of_which_anything_is_here_or_written() -> None:
    arrivals = Arrivals(3)
    assert arrivals.end == 0
    arrivals.claim(5)  # of block 1
    arrivals.claim(13)  # of block 4
    assert arrivals.end == 5
    arrivals.settle([13], is_intact=False)
    assert arrivals.end == 2
    arrivals.settle([5], is_intact=True)
    assert (arrivals.end, arrivals.num_parts) == (2, 1)


def test_blocks_that_may_be_written_are_counted_while_a_part_is_settled() -> None:
    """Metrics are read in a thread of their own."""

    class Settling(Arrivals):
        def block_of(self, part: int) -> int:
            if self.has_claims:
                self.settle([max(self._claimed)], is_intact=False)
            return super().block_of(part)

    arrivals = Settling(3)
    for part in (4, 5, 6):
        arrivals.claim(part)
    assert arrivals.num_blocks_claimed == 2


def test_a_part_is_claimed_once_at_a_time_and_never_once_it_is_here() -> None:
    arrivals = Arrivals(1)
    arrivals.claim(7)
    with pytest.raises(ValueError, match="7 is taken"):
        arrivals.claim(7)
    arrivals.settle([7], is_intact=False)
    arrivals.claim(7)
    arrivals.settle([7], is_intact=True)
    with pytest.raises(ValueError, match="7 is taken"):
        arrivals.claim(7)


def test_each_part_is_asked_for_once_more() -> None:
    arrivals = Arrivals(2)
    assert [arrivals.take_second_try(part) for part in (4, 5, 4, 5)] == [True, True, False, False]


def test_a_block_is_here_with_its_last_part_and_a_prefix_ends_at_the_first_gap() -> None:
    arrivals = Arrivals(2)
    for part in (4, 5, 6, 8, 9):  # blocks 2 and 4, and half of block 3
        arrivals.claim(part)
    assert (arrivals.has_claims, arrivals.num_blocks_claimed, arrivals.num_parts) == (True, 3, 0)
    for part in (4, 5, 6, 8, 9):
        arrivals.settle([part], is_intact=True)
    assert (arrivals.has_claims, arrivals.num_blocks_claimed, arrivals.num_parts) == (False, 0, 5)
    assert [arrivals.is_here(block) for block in range(6)] == [False, False, True, False, True, False]
    assert [arrivals.count(range(first, 6)) for first in range(6)] == [2, 2, 2, 1, 1, 0]
    assert [arrivals.prefix(block) for block in (1, 2, 3, 4)] == [0, 1, 0, 1]
    arrivals.claim(7)
    arrivals.settle([7], is_intact=True)
    assert [arrivals.prefix(block) for block in (1, 2, 3, 4)] == [0, 3, 2, 1]


def test_nothing_is_settled_without_a_claim() -> None:
    arrivals = Arrivals(1)
    assert arrivals.end == 0
    with pytest.raises(ValueError, match="3 was not claimed"):
        arrivals.settle([3], is_intact=True)
    assert not arrivals.is_here(3)


def test_all_of_some_parts_are_claimed_or_none_of_them() -> None:
    arrivals = Arrivals(2)
    assert arrivals.claim_all([4, 5, 6])
    assert arrivals.claim_all([3, 4]) is False
    arrivals.settle([4, 5], is_intact=True)
    assert not arrivals.claim_all([7, 5])
    assert [arrivals.is_taken(part) for part in range(3, 8)] == [False, True, True, True, False]
