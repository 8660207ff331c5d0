"""Layer groups: a block that travels in G equal parts, each a contiguous span with the KV of some of its layers.

Part g of block i has number i x G + g, in a chain as in a pool. A shipment is of blocks; a stream, from its outbox to
the claims at its other end, knows parts alone, and where G is 1 they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence


def parts_of(first_block: int, num_blocks: int, num_groups: int, group: int | None = None) -> range:
    """Return the parts of `num_blocks` blocks from `first_block` on: all of them, or those of one group."""
    start, end = first_block * num_groups, (first_block + num_blocks) * num_groups
    return range(start, end) if group is None else range(start + group, end, num_groups)


def part_ids(block_ids: Sequence[int], num_groups: int, group: int | None = None) -> list[int]:
    """Return where in a pool those parts of these blocks lie, in the order of `parts_of`."""
    return [part for block_id in block_ids for part in parts_of(block_id, 1, num_groups, group)]
