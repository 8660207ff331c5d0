"""Which bytes of one pod's block go where in another pod's block, when the two lie differently.

Two pools of one model may differ in the order of a block's axes and in which KV heads they hold (tensor parallelism).
`plan_copy` maps one onto the other as byte spans within a block; `apply` copies them where both ends are bytes in this
process. Where a pool lies in parts, each with an equal piece of every block, `part_spans` says where whole blocks are
in them. Pure: knows no pool and no peer. Invariants: a plan writes no byte twice, stays within both blocks, and has as
few spans as there can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pagewire.core.errors import PeerMismatch
from pagewire.core.kv_layout import BlockOrder, KVLayout

_MUST_AGREE = ("block_size", "dtype", "num_kv_heads", "num_layers", "head_dim")


class Span(NamedTuple):
    """`length` bytes from offset `source` to offset `destination`."""

    source: int
    destination: int
    length: int


class PartSpan(NamedTuple):
    """`rows` pieces of `length` bytes from one part of a pool to one part of another, at offsets in these parts.

    On both sides one piece is behind the other by what a block has there.
    """

    source_part: int
    destination_part: int
    source: int
    destination: int
    length: int
    rows: int = 1


@dataclass(frozen=True, slots=True)
class KVShard:
    """Rank `rank` of `size` equal parts of the KV heads of `layout`, which is the whole model's."""

    layout: KVLayout
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        self.layout.part(self.size)
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size}")

    @property
    def heads(self) -> range:
        """Which of the model's KV heads lie here."""
        count = self.layout.num_kv_heads // self.size
        return range(self.rank * count, (self.rank + 1) * count)

    @property
    def local(self) -> KVLayout:
        """The layout of this rank's own blocks."""
        return self.layout.part(self.size)


def plan_copy(source: KVShard, destination: KVShard) -> tuple[Span, ...]:
    """Return the spans of the heads that both hold, in the destination's order; none where there are none.

    Raises PeerMismatch naming both values of whatever must agree and does not.
    """
    for name in _MUST_AGREE:
        theirs, ours = getattr(source.layout, name), getattr(destination.layout, name)
        if theirs != ours:
            raise PeerMismatch(f"KV {name}: the source has {theirs}, the destination {ours}")
    shared = range(max(source.heads.start, destination.heads.start), min(source.heads.stop, destination.heads.stop))
    layers = range(source.layout.num_layers)
    if destination.layout.order is BlockOrder.HEAD_OUTER:
        rows = ((head, layer, kv) for head in shared for layer in layers for kv in (0, 1))
    else:
        rows = ((head, layer, kv) for layer in layers for kv in (0, 1) for head in shared)
    row_bytes = _row_bytes(source.layout)
    spans = coalesce(
        Span(_row(source, *row) * row_bytes, _row(destination, *row) * row_bytes, row_bytes) for row in rows
    )
    return tuple(spans)


def coalesce(spans: Iterable[Span]) -> list[Span]:
    """Join each span with the one before it where both ends continue."""
    joined: list[Span] = []
    for span in spans:
        if joined:
            last = joined[-1]
            if (last.source + last.length, last.destination + last.length) == (span.source, span.destination):
                joined[-1] = Span(last.source, last.destination, last.length + span.length)
                continue
        joined.append(span)
    return joined


def part_spans(spans: Sequence[Span], block_bytes: int, num_source: int, num_destination: int) -> list[PartSpan]:
    """Return spans of whole blocks, in bytes of pools that are one part, as they lie in so many parts of both pools.

    Part i of P has bytes i / P to (i + 1) / P of each block, and nothing between them; P divides a block's bytes. Where
    a piece is all that both parts have of a block, those of adjacent blocks are one.
    """
    found: list[PartSpan] = []
    theirs, ours = block_bytes // num_source, block_bytes // num_destination
    cuts = sorted({*range(0, block_bytes, theirs), *range(0, block_bytes, ours), block_bytes})
    for start, end in pairwise(cuts):
        (source_part, source_at), (part, at) = divmod(start, theirs), divmod(start, ours)
        is_all = end - start == theirs == ours
        for span in spans:
            first, to, count = span.source // block_bytes, span.destination // block_bytes, span.length // block_bytes
            length, rows = ((end - start) * count, 1) if is_all else (end - start, count)
            found.append(PartSpan(source_part, part, first * theirs + source_at, to * ours + at, length, rows))
    return found


def apply(spans: Sequence[Span], source: memoryview, destination: memoryview) -> None:
    """Copy `spans` between two flat views of bytes. Raises ValueError, before any byte moves, on one outside."""
    for span in spans:
        if min(span) < 0 or span.source + span.length > source.nbytes:
            raise ValueError(f"{span} in {source.nbytes} bytes")
        if span.destination + span.length > destination.nbytes:
            raise ValueError(f"{span} into {destination.nbytes} bytes")
    for start, to, length in spans:
        destination[to : to + length] = source[start : start + length]


def _row_bytes(layout: KVLayout) -> int:
    """Bytes of the tokens of one head's K or V in one layer, scales among them: they lie together in every order."""
    return layout.block_size * layout.slot_bytes


def _row(shard: KVShard, head: int, layer: int, kv: int) -> int:
    """Return which row of the shard's block holds K (0) or V (1) of `head` in `layer`."""
    at = head - shard.heads.start
    if shard.layout.order is BlockOrder.HEAD_OUTER:
        return (at * shard.layout.num_layers + layer) * 2 + kv
    return (layer * 2 + kv) * len(shard.heads) + at
