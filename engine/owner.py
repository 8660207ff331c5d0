"""Whose cached blocks are whose, for quotas: one object for each tag, for as long as it has a block.

Knows tags and shares; nothing of blocks or of who is behind a tag. Invariant: what is remembered of a tag lives no
longer than the blocks that name its owner, so strange tags cost nothing once their blocks are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakValueDictionary

from pagewire.core.cache_quota import CacheQuota


@dataclass(slots=True, eq=False, weakref_slot=True)
class Owner:
    """One tag; its `share` is what its latest request said, whichever blocks came with that."""

    tag: bytes
    share: float

    def limit(self, capacity: int) -> int:
        """Return how many of `capacity` places it may keep against others."""
        return int(self.share * capacity)


class Owners:
    """All owners of a cache's blocks."""

    def __init__(self) -> None:
        self._by_tag: WeakValueDictionary[bytes, Owner] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._by_tag)

    def of(self, quota: CacheQuota | None) -> Owner | None:
        """Return who has a quota, at its share from now on; None for whoever has none."""
        if quota is None:
            return None
        owner = self._by_tag.get(quota.tag)
        if owner is None:
            owner = self._by_tag[quota.tag] = Owner(quota.tag, quota.share)
        owner.share = quota.share
        return owner
