"""What a pod holds of the blocks that the index has keys for, and what the index has yet to be told of it.

Pure: time is a parameter, and so is chance. Three kinds of word go out, in batches: news; everything that is held, when
the index may have lost something (an outage, a Redis that no longer knows the pod); and, always and slowly,
everything that is held once more, which renews what would expire and repairs what got lost unnoticed. What a server
did not take is late: a batch of it is tried every LATE_S, and keeps nothing waiting that other servers take.

Invariants: memory is bounded by what is held and MAX_NEWS. When all has been written and nothing was lost on the way,
the entries under `index_id` are exactly what is held. News beyond MAX_NEWS are given up together with the index id:
what stands in the index under the old one is nobody's from then on, so no removal is ever lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from pagewire.core.block_hash import HASH_BYTES, BlockHash

MAX_NEWS = 100_000
LATE_S = 1.0  # between tries of what was not taken
RENEW_S = 1500.0  # of a walk over all that is held, one after the other: twice that is below the index's expiry
NONE_PENDING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What to write at once: hash -> tier, None for not held any more. `used` are the tiers that were ever named."""

    index_id: int
    tiers: dict[BlockHash, int | None]
    used: frozenset[int]
    is_renewal: bool


class Ledger:
    """One pod's part of the index. `draw` returns a new index id."""

    def __init__(self, draw: Callable[[], int], now_s: float) -> None:
        self._draw = draw
        self.index_id = draw()
        self._held: dict[BlockHash, int] = {}  # hash -> tier
        self._used = {0}  # entries can be in no other tiers
        self._news: dict[BlockHash, int | None] = {}  # the latest word on each
        self._late: dict[BlockHash, int | None] = {}  # what was not taken, of what is no news any more
        self._late_s = now_s  # when it is tried next
        self._walk: list[BlockHash] = []  # what is still to be told once more
        self._is_urgent = False
        self._next_s = now_s + RENEW_S  # of the walk's next batch, or of the next walk
        self._started_s = now_s
        self._pace_s = 0.0

    @property
    def num_held(self) -> int:
        """Blocks that have, or should have, an entry."""
        return len(self._held)

    def stored(self, block_hash: BlockHash, tier: int) -> None:
        """A block is held, in `tier` from now on. Raises ValueError on what is no hash."""
        self._note(block_hash, tier)
        self._used.add(tier)
        self._held[block_hash] = tier

    def evicted(self, block_hash: BlockHash) -> None:
        """A block is held no longer. Raises ValueError on what is no hash."""
        self._held.pop(block_hash, None)
        self._note(block_hash, None)

    def announce(self) -> None:
        """The index may have lost anything: tell it everything that is held, now."""
        self._start_walk()
        self._is_urgent = True

    def due_s(self, now_s: float) -> float:
        """Return in how many seconds there is something to write, 0 for now."""
        if self._news or (self._is_urgent and self._walk):
            return 0.0
        return max(0.0, (min(self._next_s, self._late_s) if self._late else self._next_s) - now_s)

    def next_batch(self, limit: int, now_s: float) -> Batch | None:
        """Return what to write now, None when nothing is due.

        Hand it to `written` or `missed`, or else call `announce`.
        """
        if self._late and now_s >= self._late_s:
            return self._batch(dict(itertools.islice(self._late.items(), limit)), is_renewal=True)
        if self._news:
            return self._batch(dict(itertools.islice(self._news.items(), limit)))
        if not self._walk:
            self._is_urgent = False
            if now_s < self._next_s:
                return None
            self._start_walk()
            self._started_s = self._next_s = now_s
            self._pace_s = RENEW_S * limit / max(len(self._walk), limit)
        if not self._is_urgent and now_s < self._next_s:
            return None
        part = self._walk[-limit:]
        del self._walk[-limit:]
        # Blocks with news are told by these; those that went meanwhile have been.
        tiers: dict[BlockHash, int | None] = {each: self._held[each] for each in part if each in self._held}
        if not self._is_urgent:
            self._next_s = self._next_s + self._pace_s if self._walk else self._started_s + RENEW_S
        return self._batch(tiers, is_renewal=True) if tiers else None

    def written(self, batch: Batch) -> None:
        """The index has taken `batch`. Only now: what an outage keeps from being written, removals above all, waits."""
        self._taken(batch, batch.tiers)

    def missed(self, batch: Batch, missed: Collection[BlockHash], now_s: float) -> None:
        """The index has taken `batch` but for `missed`, which is late from now on."""
        self._taken(batch, batch.tiers.keys() - missed)
        if batch.index_id != self.index_id:
            return
        for block_hash in missed:
            tier = batch.tiers[block_hash]
            if self._news.get(block_hash, tier) == tier:
                self._news.pop(block_hash, None)
                self._late.pop(block_hash, None)
                self._late[block_hash] = tier  # behind what has not been tried for longer
        self._late_s = now_s + LATE_S

    def _taken(self, batch: Batch, taken: Iterable[BlockHash]) -> None:
        if batch.index_id != self.index_id:
            return
        was_late = bool(self._late)
        for block_hash in taken:
            tier = batch.tiers[block_hash]
            if not batch.is_renewal and self._news.get(block_hash, NONE_PENDING) == tier:
                del self._news[block_hash]
            if self._late.get(block_hash, NONE_PENDING) == tier:
                del self._late[block_hash]
        if was_late and not self._late:
            self.announce()  # a server that was away may have forgotten what it took before

    def all_held(self) -> list[BlockHash]:
        """Return what has, or should have, an entry."""
        return list(self._held)

    @property
    def used(self) -> frozenset[int]:
        """The tiers that were ever named."""
        return frozenset(self._used)

    def _start_walk(self) -> None:
        self._walk = list(self._held)
        self._walk.reverse()  # it is taken from the end: the oldest first, in every walk

    def _batch(self, tiers: dict[BlockHash, int | None], *, is_renewal: bool = False) -> Batch:
        return Batch(index_id=self.index_id, tiers=tiers, used=self.used, is_renewal=is_renewal)

    def _note(self, block_hash: BlockHash, tier: int | None) -> None:
        if len(block_hash) != HASH_BYTES:
            raise ValueError(f"a block hash of {len(block_hash)} bytes")
        self._late.pop(block_hash, None)
        has_too_many = len(self._news) >= MAX_NEWS and block_hash not in self._news
        if has_too_many or len(self._late) >= MAX_NEWS + len(self._held):
            self._news.clear()
            self._late.clear()
            self.index_id = self._draw()
            self.announce()
        self._news[block_hash] = tier
