"""What a shipment holds: a run of blocks of one sequence's chain.

Knows indices in the chain, never ids in a pool. Invariant: `0 <= first_block` and `0 <= num_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Blocks `first_block` .. `end - 1` of a chain. Raises ValueError on a negative number."""

    first_block: int
    num_blocks: int

    def __post_init__(self) -> None:
        if self.first_block < 0 or self.num_blocks < 0:
            raise ValueError(f"a manifest of {self.num_blocks} blocks from {self.first_block} on")

    @property
    def end(self) -> int:
        """The index after the last block."""
        return self.first_block + self.num_blocks

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self.first_block <= index < self.end

    def covers(self, other: Manifest) -> bool:
        """Return whether every block of `other` is one of ours."""
        return self.first_block <= other.first_block and other.end <= self.end

    def indices(self) -> range:
        """Return the indices, ascending."""
        return range(self.first_block, self.end)

    def num_bytes(self, block_bytes: int) -> int:
        """Return what the blocks weigh."""
        return self.num_blocks * block_bytes
