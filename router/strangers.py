"""Names in the prefix index that nobody goes by: whose entries to sweep.

A pod that died, or drew another name, leaves its entries behind. But a name that a router does not know may be that of
a pod which it will hear of in a moment, so it has to have been unknown for a while. Pure: time is a parameter.
Invariant: no entry of an index id that is known is swept; memory is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pagewire.core.block_hash import BlockHash
from pagewire.core.index_member import index_id_of

MAX_STRANGERS = 4096

Entry = tuple[BlockHash, bytes]


class Strangers:
    """The unknown index ids that were met, each with the time when that was first."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._met_s: dict[int, float] = {}

    def stale(self, entries: Iterable[Entry], known: Collection[int], now_s: float) -> list[Entry]:
        """Return those of `entries` that are nobody's; `known` are the index ids of all pods that exist."""
        return [entry for entry in entries if self._is_nobody(entry[1], known, now_s)]

    def _is_nobody(self, name: bytes, known: Collection[int], now_s: float) -> bool:
        index_id = index_id_of(name)
        if index_id is None:
            return True  # no pod writes such a thing
        if index_id in known:
            self._met_s.pop(index_id, None)
            return False
        if index_id not in self._met_s and len(self._met_s) >= MAX_STRANGERS:
            del self._met_s[next(iter(self._met_s))]
        return now_s - self._met_s.setdefault(index_id, now_s) >= self._wait_s
