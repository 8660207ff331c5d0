"""What a pod's cache gained and lost, as a router that asked hears it. Knows no link and no cache."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEvents:
    """A change of a pod's cache, or with `num_parts` part `part` of all that it holds after the change `sequence`.

    Changes count from 1 in each incarnation of a pod; a snapshot has the number of the change that it follows. Block
    `hashes[i]` is at place `depths[i]` of its chain and in tier `tiers[i]`: 0 is the pool, 1 host memory.
    """

    sequence: int
    hashes: tuple[BlockHash, ...] = ()
    depths: tuple[int, ...] = ()
    tiers: tuple[int, ...] = ()
    evicted: tuple[BlockHash, ...] = ()
    part: int = 0
    num_parts: int = 0

    def __post_init__(self) -> None:
        """Refuse what names blocks and does not say of each where it is with ValueError."""
        if not len(self.hashes) == len(self.depths) == len(self.tiers):
            raise ValueError(
                f"{len(self.hashes)} blocks, {len(self.depths)} places in chains and {len(self.tiers)} tiers"
            )

    @property
    def is_snapshot(self) -> bool:
        """True for a part of all that is held."""
        return self.num_parts > 0

    @property
    def is_last(self) -> bool:
        """True for a snapshot's last part."""
        return self.part == self.num_parts - 1

    @property
    def num_blocks(self) -> int:
        """Blocks that are named."""
        return len(self.hashes) + len(self.evicted)
