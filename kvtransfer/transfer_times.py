"""How long a shipment's bytes took, and how much of that nobody noticed; on the decode pod's clock alone.

Knows indices and moments. Invariant: no second is counted twice, however chunks overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Landing(NamedTuple):
    """Parts that were announced together, when, and when the last of them so far was placed."""

    parts: range
    announced_s: float
    placed_s: float


class TransferTimes:
    """Collects announcements, verifications and the first token of one shipment."""

    def __init__(self) -> None:
        self.first_token_s: float | None = None
        self._chunks: list[tuple[range, float]] = []  # parts, announced at
        self._verified_s: dict[int, float] = {}

    def announced(self, indices: range, now_s: float) -> None:
        """These were announced together."""
        self._chunks.append((indices, now_s))

    def verified(self, indices: Iterable[int], now_s: float) -> None:
        """These parts were placed, each once."""
        self._verified_s.update(dict.fromkeys(indices, now_s))

    def first_token(self, now_s: float) -> None:
        """The first token was received; the first time stands."""
        if self.first_token_s is None:
            self.first_token_s = now_s

    @property
    def last_verified_s(self) -> float | None:
        """When the latest block was placed; None before the first."""
        return max(self._verified_s.values(), default=None)

    @property
    def exposed_s(self) -> float:
        """Seconds with a first token and without all KV: max(0, last block verified - first token received)."""
        if self.first_token_s is None or self.last_verified_s is None:
            return 0.0
        return max(0.0, self.last_verified_s - self.first_token_s)

    @property
    def transfer_s(self) -> float:
        """Seconds in which at least one announced chunk was on its way: the length of a union of intervals.

        Of each chunk, what `landings` says.
        """
        intervals = [(landing.announced_s, landing.placed_s) for landing in self.landings()]
        total_s, reached_s = 0.0, float("-inf")
        for start_s, end_s in sorted(intervals):
            total_s += max(0.0, end_s - max(start_s, reached_s))
            reached_s = max(reached_s, end_s)
        return total_s

    def landings(self) -> Iterator[Landing]:
        """Yield each chunk that has verified blocks.

        It runs from its announcement (or its first verified block, where bytes overtook the announcement) to its last
        verified block so far.
        """
        for indices, announced_s in self._chunks:
            moments = [self._verified_s[index] for index in indices if index in self._verified_s]
            if moments:
                yield Landing(indices, min(announced_s, *moments), max(moments))
