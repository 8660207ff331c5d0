"""Copy plans against a naive copy, element by element, and their number of spans."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.errors import PeerMismatch
from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.kvtransfer.plan import KVShard, PartSpan, Span, apply, coalesce, part_spans, plan_copy

HEADS, LAYERS = 4, 3
LAYER_OUTER = KVLayout(
    num_layers=LAYERS, num_kv_heads=HEADS, head_dim=2, block_size=16, dtype="bfloat16", order=BlockOrder.LAYER_OUTER
)
HEAD_OUTER = replace(LAYER_OUTER, order=BlockOrder.HEAD_OUTER)

orders = st.sampled_from(BlockOrder)
layouts = st.builds(
    KVLayout,
    num_layers=st.integers(1, 3),
    num_kv_heads=st.sampled_from([1, 2, 4, 6]),
    head_dim=st.sampled_from([1, 4]),
    block_size=st.just(16),
    dtype=st.sampled_from(["float32", "bfloat16", "int8"]),
)


def element(shard: KVShard, head: int, layer: int, kv: int, token: int, dim: int) -> int:
    """Where one number lies in a shard's block, by the documented shape and nothing else."""
    local = shard.local
    at = head - shard.heads.start
    by_order = {
        BlockOrder.LAYER_OUTER: (0, layer, kv, at, token, dim),
        BlockOrder.HEAD_OUTER: (0, at, layer, kv, token, dim),
    }
    return int(np.ravel_multi_index(by_order[local.order], local.shape(1)))


def naive_copy(source: KVShard, destination: KVShard, data: np.ndarray, into: np.ndarray) -> None:
    """Copy every number that both hold, one at a time."""
    layout = source.layout
    for head in set(source.heads) & set(destination.heads):
        axes = (range(layout.num_layers), range(2), range(layout.block_size), range(layout.shape(1)[-1]))
        for rest in itertools.product(*axes):
            into[element(destination, head, *rest)] = data[element(source, head, *rest)]


def random_block(shard: KVShard, seed: int) -> np.ndarray:
    width = {"float32": np.uint32, "bfloat16": np.uint16, "int8": np.uint8}[shard.layout.dtype]
    values = np.random.default_rng(seed).integers(0, 2**16, int(np.prod(shard.local.shape(1))))
    return values.astype(width)


def view(array: np.ndarray) -> memoryview:
    return array.data.cast("B")


def copied(plan: Sequence[Span], data: np.ndarray, into: np.ndarray) -> np.ndarray:
    result = into.copy()
    apply(plan, view(data), view(result))
    return result


@settings(deadline=None, max_examples=60)
@given(layout=layouts, source_order=orders, destination_order=orders, data=st.data())
def test_a_plan_copies_what_a_naive_copy_does_and_nothing_else(
    layout: KVLayout, source_order: BlockOrder, destination_order: BlockOrder, data: st.DataObject
) -> None:
    sizes = st.sampled_from([size for size in range(1, layout.num_kv_heads + 1) if layout.num_kv_heads % size == 0])
    source_size, destination_size = data.draw(sizes), data.draw(sizes)
    source = KVShard(replace(layout, order=source_order), data.draw(st.integers(0, source_size - 1)), source_size)
    destination = KVShard(
        replace(layout, order=destination_order), data.draw(st.integers(0, destination_size - 1)), destination_size
    )
    plan = plan_copy(source, destination)
    block, before = random_block(source, 1), random_block(destination, 2)
    expected = before.copy()
    naive_copy(source, destination, block, expected)
    assert np.array_equal(copied(plan, block, before), expected)
    for one, next_one in itertools.pairwise(plan):
        one_end = (one.source + one.length, one.destination + one.length)
        assert one_end[1] <= next_one.destination, "in the destination's order, nothing twice"
        assert one_end != (next_one.source, next_one.destination), "as few spans as there can be"


@settings(deadline=None, max_examples=30)
@given(layout=layouts, source_order=orders, destination_order=orders, data=st.data())
def test_all_source_ranks_together_fill_a_destination(
    layout: KVLayout, source_order: BlockOrder, destination_order: BlockOrder, data: st.DataObject
) -> None:
    sizes = st.sampled_from([size for size in range(1, layout.num_kv_heads + 1) if layout.num_kv_heads % size == 0])
    source_size, destination_size = data.draw(sizes), data.draw(sizes)
    destination = KVShard(
        replace(layout, order=destination_order), data.draw(st.integers(0, destination_size - 1)), destination_size
    )
    plans = [
        plan_copy(KVShard(replace(layout, order=source_order), rank, source_size), destination)
        for rank in range(source_size)
    ]
    written = sorted((span.destination, span.length) for plan in plans for span in plan)
    ends = [0, *itertools.accumulate(length for _, length in written)]
    assert [start for start, _ in written] == ends[:-1], "no gap, no overlap"
    assert ends[-1] == destination.local.block_bytes


@pytest.mark.parametrize(
    ("source", "destination", "count"),
    [
        # One order and the same heads: a block is one span.
        (KVShard(LAYER_OUTER), KVShard(LAYER_OUTER), 1),
        (KVShard(HEAD_OUTER, 1, 2), KVShard(HEAD_OUTER, 1, 2), 1),
        # A head shard is one span where heads are outermost, one a layer and K or V where they are not.
        (KVShard(HEAD_OUTER, 1, 2), KVShard(HEAD_OUTER), 1),
        (KVShard(HEAD_OUTER), KVShard(HEAD_OUTER, 1, 2), 1),
        (KVShard(HEAD_OUTER, 3, 4), KVShard(HEAD_OUTER, 1, 2), 1),
        (KVShard(LAYER_OUTER, 1, 2), KVShard(LAYER_OUTER), LAYERS * 2),
        (KVShard(LAYER_OUTER), KVShard(LAYER_OUTER, 0, 2), LAYERS * 2),
        (KVShard(LAYER_OUTER, 3, 4), KVShard(LAYER_OUTER, 1, 2), LAYERS * 2),
        # Between orders: one a head, layer and K or V.
        (KVShard(HEAD_OUTER), KVShard(LAYER_OUTER), HEADS * LAYERS * 2),
        (KVShard(LAYER_OUTER), KVShard(HEAD_OUTER), HEADS * LAYERS * 2),
        (KVShard(HEAD_OUTER, 0, 2), KVShard(LAYER_OUTER), HEADS // 2 * LAYERS * 2),
        # A single head lies the same in both.
        (KVShard(HEAD_OUTER, 2, 4), KVShard(LAYER_OUTER, 2, 4), 1),
        # Nothing in common, nothing to copy.
        (KVShard(HEAD_OUTER, 0, 2), KVShard(HEAD_OUTER, 1, 2), 0),
        (KVShard(LAYER_OUTER, 0, 4), KVShard(HEAD_OUTER, 1, 2), 0),
    ],
)
def test_the_number_of_spans(source: KVShard, destination: KVShard, count: int) -> None:
    plan = plan_copy(source, destination)
    assert len(plan) == count


@pytest.mark.parametrize(
    ("field", "theirs", "ours"),
    [
        ("block_size", 16, 32),
        ("dtype", "float32", "bfloat16"),
        ("num_kv_heads", 4, 2),
        ("num_layers", 3, 4),
        ("head_dim", 2, 64),
    ],
)
def test_what_must_agree_is_refused_by_name_with_both_values(field: str, theirs: object, ours: object) -> None:
    source = replace(LAYER_OUTER, **{field: theirs})  # type: ignore[arg-type]
    destination = replace(LAYER_OUTER, **{field: ours})  # type: ignore[arg-type]
    with pytest.raises(PeerMismatch, match=f"{field}: the source has {theirs}, the destination {ours}"):
        plan_copy(KVShard(source), KVShard(destination))


@pytest.mark.parametrize(("rank", "size"), [(0, 3), (0, 8), (2, 2), (-1, 2), (0, 0)])
def test_a_shard_is_one_of_equal_parts(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"equal parts|rank"):
        KVShard(LAYER_OUTER, rank, size)


@pytest.mark.parametrize("span", [Span(9, 0, 8), Span(0, 9, 8), Span(-1, 0, 4), Span(0, -1, 4), Span(0, 0, -1)])
def test_spans_outside_move_nothing(span: Span) -> None:
    into = bytearray(16)
    with pytest.raises(ValueError, match="bytes"):
        apply([Span(0, 0, 8), span], memoryview(bytes(range(16))), memoryview(into))
    assert not any(into)


@settings(deadline=None, max_examples=100)
@given(
    parts=st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([1, 2, 3, 4, 6])),
    moves=st.dictionaries(st.integers(0, 7), st.integers(0, 7), max_size=8),
)
def test_spans_of_whole_blocks_are_found_in_the_parts_of_both_pools(
    parts: tuple[int, int], moves: dict[int, int]
) -> None:
    """Against the blocks put together and taken apart again."""
    num_blocks, size = 8, 12
    source = np.arange(num_blocks * size, dtype=np.uint8).reshape(num_blocks, size)
    expected = np.full_like(source, 255)
    for destination, block in moves.items():
        expected[destination] = source[block]
    sources = [part.copy() for part in np.split(source, parts[0], axis=1)]
    destinations = [part.copy() for part in np.split(np.full_like(source, 255), parts[1], axis=1)]
    whole = coalesce(Span(block * size, to * size, size) for to, block in moves.items())
    found = part_spans(whole, size, *parts)
    for span in found:
        for row in range(span.rows):
            piece = Span(span.source + row * size // parts[0], span.destination + row * size // parts[1], span.length)
            apply([piece], view(sources[span.source_part]), view(destinations[span.destination_part]))
    assert np.array_equal(np.concatenate(destinations, axis=1), expected)
    pieces = len({*range(0, size, size // parts[0]), *range(0, size, size // parts[1])})
    assert len(found) == len(whole) * pieces, "a run of blocks is one span for each piece"


def test_pieces_that_are_all_of_a_block_in_both_parts_are_one_and_others_rows() -> None:
    run = [Span(12, 36, 24), Span(60, 0, 12)]  # blocks 1 and 2 to 3 and 4, block 5 to 0
    assert part_spans(run, 12, 1, 1) == [PartSpan(0, 0, *span) for span in run]
    assert part_spans(run, 12, 2, 2) == [
        PartSpan(0, 0, 6, 18, 12), PartSpan(0, 0, 30, 0, 6), PartSpan(1, 1, 6, 18, 12), PartSpan(1, 1, 30, 0, 6),
    ]  # fmt: skip
    assert part_spans(run, 12, 2, 1) == [
        PartSpan(0, 0, 6, 36, 6, 2), PartSpan(0, 0, 30, 0, 6), PartSpan(1, 0, 6, 42, 6, 2), PartSpan(1, 0, 30, 6, 6),
    ]  # fmt: skip
    assert part_spans(run, 12, 1, 2) == [
        PartSpan(0, 0, 12, 18, 6, 2), PartSpan(0, 0, 60, 0, 6), PartSpan(0, 1, 18, 18, 6, 2), PartSpan(0, 1, 66, 0, 6),
    ]  # fmt: skip
    assert part_spans(run[1:], 12, 2, 3) == [
        PartSpan(0, 0, 30, 0, 4), PartSpan(0, 1, 34, 0, 2), PartSpan(1, 1, 30, 2, 2), PartSpan(1, 2, 32, 0, 4),
    ]  # fmt: skip
