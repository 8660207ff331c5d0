"""A block that lies in host memory: what it is, and where."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash
from pagewire.engine.owner import Owner


@dataclass(frozen=True, slots=True)
class Parked:
    """A block in the host tier: `depth` is its place in the chain; a `tail` is not full, and its sequence's own.

    Its `owner` is whose quota it counts against.
    """

    slot: int
    block_hash: BlockHash
    parent_hash: BlockHash | None
    depth: int
    is_tail: bool = False
    owner: Owner | None = None
