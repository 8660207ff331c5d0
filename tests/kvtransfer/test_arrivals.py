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
    arrivals.settle(13, is_intact=False)
    assert arrivals.end == 2
    arrivals.settle(5, is_intact=True)
    assert (arrivals.end, arrivals.num_parts) == (2, 1)


def test_a_part_is_claimed_once_at_a_time_and_never_once_it_is_here() -> None:
    arrivals = Arrivals(1)
    arrivals.claim(7)
    with pytest.raises(ValueError, match="7 is taken"):
        arrivals.claim(7)
    arrivals.settle(7, is_intact=False)
    arrivals.claim(7)
    arrivals.settle(7, is_intact=True)
    with pytest.raises(ValueError, match="7 is taken"):
        arrivals.claim(7)


def test_each_part_is_asked_for_once_more() -> None:
    arrivals = Arrivals(2)
    assert [arrivals.asks_again(part) for part in (4, 5, 4, 5)] == [True, True, False, False]
