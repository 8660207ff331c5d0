"""How much of a cache may be one tenant's: a plain value that travels with its requests."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TAG_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheQuota:
    """`share` of a pod's cache, 0 to 1, for all blocks of those with the same `tag`, which says nothing of its owner.

    Over it a tenant has what nobody else wants: its own blocks are evicted before anyone else's.
    """

    tag: bytes
    share: float
