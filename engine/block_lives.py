"""How long blocks stay and how they are used, of a sample: from being taken until what was in them is lost.

A block's life begins when it is taken from the free ones and ends when the cache evicts it, or when it is taken anew.
What is not sampled costs a membership test for each block. Knows ids and a clock; nothing of hashes, holders or
requests. Invariants: of all lives, one in `sample_every` is followed in the mean, whatever is allocated in one go; the
choice depends on the order of calls alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from zlib import crc32

from pagewire.core.clock import Clock
from pagewire.core.engine_messages import BlockLife

SAMPLE_EVERY = 100  # vLLM's own default
MOST_GAPS = 3  # likewise: the last ones count


class BlockLives:
    """The sampled blocks that live, and what became of those whose end nobody took note of yet."""

    def __init__(self, clock: Clock, sample_every: int = SAMPLE_EVERY) -> None:
        self._clock = clock
        self._spread = 2 * sample_every - 1
        self._draws = count()
        self._until_next = self._draw()  # blocks to be taken, the next sampled one the last of them
        self._times: dict[int, list[float]] = {}  # of each sampled block: when it was taken, and every use since
        self._ended: list[BlockLife] = []

    def taken(self, block_ids: Sequence[int]) -> None:
        """Blocks were taken from the free ones; whatever was in them is lost."""
        self.lost(block_ids)
        while self._until_next <= len(block_ids):
            self._times[block_ids[self._until_next - 1]] = [self._clock.now()]
            self._until_next += self._draw()
        self._until_next -= len(block_ids)

    def used(self, block_ids: Sequence[int]) -> None:
        """Somebody holds blocks once more, for what is in them."""
        for block_id in self._times.keys() & block_ids:
            times = self._times[block_id]
            times.append(self._clock.now())
            if len(times) > MOST_GAPS + 2:
                del times[1]

    def lost(self, block_ids: Sequence[int]) -> None:
        """What was in these blocks is in the pool no more."""
        for block_id in self._times.keys() & block_ids:
            taken_s, *uses_s = self._times.pop(block_id)
            now_s = self._clock.now()
            self._ended.append(
                BlockLife(
                    lived_s=now_s - taken_s,
                    idle_s=now_s - (uses_s[-1] if uses_s else taken_s),
                    gaps_s=tuple(after - before for before, after in pairwise(uses_s)),
                )
            )

    def drain(self) -> tuple[BlockLife, ...]:
        """Return the lives that ended since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def _draw(self) -> int:
        """Return how many blocks further the next one is: not always as many, for requests may be all of a size."""
        return 1 + crc32(str(next(self._draws)).encode()) % self._spread
