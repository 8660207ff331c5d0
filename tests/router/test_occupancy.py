"""How a pod's pool is shown: parts that add up whatever a load says, and are those of a load that is in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.load import Load
from pagewire.router.live.occupancy import Occupancy

counts = st.integers(0, 5000)


@given(counts, counts, counts, counts, counts, counts, counts)
def test_parts_of_a_pool_are_the_pool_whatever_the_load_says(
    total: int, free: int, cached: int, held: int, pinned: int, reserved: int, arriving: int
) -> None:
    load = Load(
        blocks_total=total, blocks_free=free, blocks_cached=cached, blocks_held=held, blocks_pinned=pinned,
        blocks_reserved=reserved, blocks_arriving=arriving,
    )  # fmt: skip
    found = Occupancy.of(load)
    parts = (found.free, found.cached, found.running, found.reserved, found.arriving)
    assert min(parts) >= 0
    assert sum(parts) == total


@given(counts, counts, counts, counts, st.data())
def test_a_load_in_order_is_shown_as_it_is(free: int, cached: int, held: int, pinned: int, data: st.DataObject) -> None:
    reserved = data.draw(st.integers(0, free + cached))
    arriving = data.draw(st.integers(0, held))
    load = Load(
        blocks_total=free + cached + held + pinned, blocks_free=free, blocks_cached=cached, blocks_held=held,
        blocks_pinned=pinned, blocks_reserved=reserved, blocks_arriving=arriving,
    )  # fmt: skip
    found = Occupancy.of(load)
    assert (found.arriving, found.running, found.reserved) == (arriving, held - arriving, reserved)
    assert found.free == max(0, free - reserved)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(), (0, 0, 0, 0, 0)),
        (Load(blocks_total=-1, blocks_free=1, blocks_held=1), (0, 0, 0, 0, 0)),
        (Load(blocks_total=10, blocks_free=10), (10, 0, 0, 0, 0)),
        (Load(blocks_total=10, blocks_free=2, blocks_cached=3, blocks_pinned=1, blocks_held=4), (2, 4, 4, 0, 0)),
        # A promise takes the free ones first, then cached ones.
        (Load(blocks_total=10, blocks_free=6, blocks_cached=4, blocks_reserved=6), (0, 4, 0, 6, 0)),
        (Load(blocks_total=10, blocks_free=6, blocks_cached=4, blocks_reserved=7), (0, 3, 0, 7, 0)),
        # The front's count is a moment ahead of the engine's.
        (Load(blocks_total=10, blocks_free=7, blocks_held=3, blocks_arriving=5), (7, 0, 0, 0, 3)),
        (Load(blocks_total=10, blocks_free=7, blocks_held=3, blocks_arriving=-1), (7, 0, 3, 0, 0)),
        # What does not fit is not shown: what is held goes before what is promised, and that before what is cached.
        (Load(blocks_total=10, blocks_held=8, blocks_reserved=4, blocks_cached=4), (0, 0, 8, 2, 0)),
        (Load(blocks_total=10, blocks_free=4, blocks_held=12), (0, 0, 10, 0, 0)),
        # What nobody accounts for counts as free, and a block that goes for a promise is not cached any more.
        (Load(blocks_total=20, blocks_free=2, blocks_cached=3, blocks_reserved=4), (15, 1, 0, 4, 0)),
    ],
)
def test_each_block_is_shown_once_as_the_first_that_it_is(load: Load, expected: tuple[int, ...]) -> None:
    found = Occupancy.of(load)
    assert (found.free, found.cached, found.running, found.reserved, found.arriving) == expected
