"""Which part of a model one tensor-parallel rank has. Knows numbers; knows no tensor.

Invariant: the parts of all ranks are disjoint, equally large, and together the whole.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Rank `rank` of `num_ranks`; by itself it is the whole."""

    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank {self.rank} of {self.num_ranks}")

    @property
    def is_first(self) -> bool:
        """Whether this rank has what is not divided: biases of products that are summed, and the head."""
        return self.rank == 0

    def part(self, whole: int) -> slice:
        """Return its places among `whole` of them, which must divide."""
        size = whole // self.num_ranks
        return slice(self.rank * size, (self.rank + 1) * size)
