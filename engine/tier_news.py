"""What changed of a cache since it was last told: what is in another tier than was said, and what is in none.

Knows hashes, depths and tiers. Invariant: what comes and goes between two tellings is never told of.
"""

from __future__ import annotations

from collections.abc import Callable

from pagewire.core.block_hash import BlockHash
from pagewire.core.engine_messages import CachedBlock


class TierNews:
    """Changes that are not told yet, of every `stride`-th block of a chain."""

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._changes: dict[BlockHash, tuple[int | None, int]] = {}  # the tier that was told, None for none; the depth

    def note(self, block_hash: BlockHash, depth: int, before: int | None) -> None:
        """Remember that a block leaves the tier `before`, None for none, if it is the first time since the telling."""
        if (depth + 1) % self._stride == 0:
            self._changes.setdefault(block_hash, (before, depth))

    def take(
        self, tier_of: Callable[[BlockHash], int | None]
    ) -> tuple[tuple[CachedBlock, ...], tuple[CachedBlock, ...]]:
        """Return (stored, evicted) since the last call, by the tiers of now."""
        changes, self._changes = self._changes, {}
        stored, evicted = [], []
        for block_hash, (told, depth) in changes.items():
            tier = tier_of(block_hash)
            if tier is None and told is not None:
                evicted.append(CachedBlock(block_hash=block_hash, depth=depth, tier=told))
            elif tier is not None and tier != told:
                stored.append(CachedBlock(block_hash=block_hash, depth=depth, tier=tier))
        return tuple(stored), tuple(evicted)
