"""One block of the pool, as the bookkeeper sees it: who holds it and which piece of which chain it is."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from pagewire.core.block_hash import BlockHash
from pagewire.engine.owner import Owner

NO_BLOCK = -1  # stands in a block table for a block that is not in the pool


def table_of(block_ids: Iterable[int] = ()) -> array[int]:
    """Return a block table: ids as they lie in a step's tensors, so that to copy one reads no number in Python."""
    return array("q", block_ids)


@dataclass(slots=True)
class Block:
    """A block: `references` is how many sequences hold it; `block_hash` is set while the cache knows it.

    `children` are the ids of the registered blocks that directly follow this one in some chain. One that is not
    `parks` is not worth a copy in host memory when it leaves the cache. While the cache knows it, its `owner` is whose
    quota it counts against, None for nobody's.
    """

    block_id: int
    references: int = 0
    block_hash: BlockHash | None = None
    parent: int | None = None
    depth: int = 0
    children: set[int] = field(default_factory=set)
    parks: bool = True
    owner: Owner | None = None
