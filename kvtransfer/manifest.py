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

    def indices(self) -> range:
        """Return the indices, ascending."""
        return range(self.first_block, self.end)
