"""What a carrier copies between two pools: as few spans as there can be, and never a byte outside of either."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_rigs import BLOCK_BYTES, NUM_BLOCKS, pool

from pagewire.core.errors import ContractBroken
from pagewire.kvtransfer.carrier import Move, spans
from pagewire.kvtransfer.plan import Span
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.wire import Ready

MEMORY = pool(filled=False)


def of(block_ids: tuple[int, ...], moves: list[Move], num_source_blocks: int = NUM_BLOCKS) -> list[Span]:
    """The spans, in blocks."""
    found = spans(Ready(ShipmentKey(1, 1), 0, (), block_ids=block_ids), moves, MEMORY, num_source_blocks)
    return [Span(*(number // BLOCK_BYTES for number in span)) for span in found]


def test_blocks_that_go_on_at_both_ends_are_one_span() -> None:
    assert of((5, 6, 7, 9, 10), [(0, 1), (1, 2), (2, 3), (3, 4), (4, 8)]) == [
        Span(5, 1, 3),
        Span(9, 4, 1),
        Span(10, 8, 1),
    ]
    assert of((5, 6, 7), [(0, 1), (2, 2)]) == [Span(5, 1, 1), Span(7, 2, 1)]
    assert of((5,), []) == []


@given(
    block_ids=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    targets=st.lists(st.integers(0, 9), min_size=12, max_size=12),
)
def test_spans_are_the_blocks_in_their_order(block_ids: list[int], targets: list[int]) -> None:
    moves = list(zip(range(len(block_ids)), targets, strict=False))
    found = of(tuple(block_ids), moves)
    pairs = [(span.source + at, span.destination + at) for span in found for at in range(span.length)]
    assert pairs == list(zip(block_ids, targets, strict=False))
    for span, after in pairwise(found):
        assert (span.source + span.length, span.destination + span.length) != (after.source, after.destination)


@pytest.mark.parametrize("moves", [[(0, 1), (2, 2)], [(-1, 1)], [(1, 1)]])
def test_what_the_source_does_not_have_breaks_the_contract(moves: list[Move]) -> None:
    with pytest.raises(ContractBroken, match="announced another"):
        of((5, NUM_BLOCKS), moves)


@pytest.mark.parametrize("moves", [[(0, 1), (2, 2)], [(2, 1), (0, 2)], [(-1, 1)], [(0, 1), (-1, 2)], [(2, 1)]])
def test_a_position_that_the_message_does_not_have_breaks_it_too(moves: list[Move]) -> None:
    with pytest.raises(ContractBroken, match="announced another"):
        of((5, NUM_BLOCKS - 1), moves)


@pytest.mark.parametrize("block_id", [-1, NUM_BLOCKS])
def test_what_we_do_not_have_is_not_written(block_id: int) -> None:
    with pytest.raises(IndexError):
        of((5, 6), [(0, 1), (1, block_id)])
