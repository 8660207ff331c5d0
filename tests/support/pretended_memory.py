"""A memory of tokens in place of KV: what lies in each slot of the pool and of host memory.

A read that finds another token than it must is a mistake of whoever gave out the blocks.
"""

from __future__ import annotations

from pagewire.engine.moves import Way
from pagewire.engine.scheduler import Scheduler

B = 16


class Memory:
    """What lies in each slot of the pool and of host memory: the token, or -1 for rubbish."""

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        self.pool = [[-1] * B for _ in range(num_blocks)]
        self.host = [[-1] * B for _ in range(num_slots)]

    def move(self, scheduler: Scheduler) -> None:
        """Make the copies that the pool asks for."""
        for source, target, way, _ in scheduler.pool.take_moves():
            places = self.host if way is Way.IN else self.pool
            (self.host if way is Way.OUT else self.pool)[target] = list(places[source])

    def write(self, block_ids: list[int], start: int, tokens: tuple[int, ...]) -> None:
        """Put tokens into their slots."""
        for position, token in enumerate(tokens, start):
            self.pool[block_ids[position // B]][position % B] = token

    def read(self, block_ids: list[int], count: int, first: int = 0, spilled: tuple[int, ...] = ()) -> list[int]:
        """Return tokens `first` .. `count - 1` of a block table; its first blocks lie in the slots `spilled`."""
        assert all(block_id < 0 for block_id in block_ids[: len(spilled)]), "a block is in the pool and spilled"
        assert all(block_id >= 0 for block_id in block_ids[max(first // B, len(spilled)) :]), "a block is not there"
        blocks = [self.host[slot] for slot in spilled] + [self.pool[block_id] for block_id in block_ids[len(spilled) :]]
        return [blocks[position // B][position % B] for position in range(first, count)]
