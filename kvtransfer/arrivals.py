"""Which parts of a shipment's blocks are being written, are here intact, or were asked for once more.

Knows the indices of parts (see `parts`), in which all is said, and what makes a block of them whole. Knows no states,
no clock and no ids. Invariant: no part is claimed twice at a time, or once it is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagewire.kvtransfer.parts import parts_of


class Arrivals:
    """Those of blocks in `num_groups` parts each."""

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups
        self._claimed: set[int] = set()
        self._verified: set[int] = set()
        self._resent: set[int] = set()

    @property
    def has_claims(self) -> bool:
        """True while something may be written."""
        return bool(self._claimed)

    @property
    def num_blocks_claimed(self) -> int:
        """How many blocks may be written now; another thread may ask."""
        return len({self.block_of(part) for part in tuple(self._claimed)})

    @property
    def num_parts(self) -> int:
        """How many parts are here."""
        return len(self._verified)

    @property
    def end(self) -> int:
        """The index behind the last block of which a part is here, or being written; 0 for none."""
        return self.block_of(max(self._verified | self._claimed, default=-1)) + 1

    def block_of(self, part: int) -> int:
        """Return the index of the block that a part is of."""
        return part // self.num_groups

    def is_taken(self, part: int) -> bool:
        """Return whether a part is here, or being written."""
        return part in self._verified or part in self._claimed

    def claim(self, part: int) -> None:
        """Have a part written from now on. Raises ValueError where it is taken."""
        if self.is_taken(part):
            raise ValueError(f"{part} is taken")
        self._claimed.add(part)

    def claim_all(self, parts: Sequence[int]) -> bool:
        """Have all of these, which differ, written from now on; none of them, and False, where one is taken."""
        if not (self._verified.isdisjoint(parts) and self._claimed.isdisjoint(parts)):
            return False
        self._claimed.update(parts)
        return True

    def settle(self, parts: Sequence[int], is_intact: bool) -> None:
        """Nothing writes claimed parts any more. Raises ValueError where one was not claimed."""
        for part in parts:
            if part not in self._claimed:
                raise ValueError(f"{part} was not claimed")
        self._claimed.difference_update(parts)
        if is_intact:
            self._verified.update(parts)

    def take_second_try(self, part: int) -> bool:
        """Return whether a part that came spoilt may be asked for once more, which it is then: not twice."""
        if part in self._resent:
            return False
        self._resent.add(part)
        return True

    def is_here(self, block: int) -> bool:
        """Return whether every part of a block is here."""
        return self._verified.issuperset(parts_of(block, 1, self.num_groups))

    def count(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks are here, whole."""
        return sum(self.is_here(block) for block in blocks)

    def prefix(self, first_block: int) -> int:
        """Return how many blocks from `first_block` on are here without a gap."""
        block = first_block
        while self.is_here(block):
            block += 1
        return block - first_block
