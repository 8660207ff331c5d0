"""Copies blocks within the pool, and between the pool and host memory, as the bookkeeping asks for it.

Knows tensors and ids; decides nothing. Invariant: moves take effect in their order, and have when `move` returns:
whoever learns a block's id next may be another process.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagewire.engine.moves import Move, Way
from pagewire.kernels.backend import Backend

MAX_BLOCKS_AT_ONCE = 64  # bounds the temporary that a copy goes through


class BlockMover:
    """Host memory of `num_slots` blocks, `host`, beside a pool `[N, L, 2, Hk, B, D]`."""

    def __init__(self, pool: torch.Tensor, num_slots: int, backend: Backend) -> None:
        self._pool = pool
        self._backend = backend
        # Not pinned: copies go through a temporary all the same, and torch rounds pinned memory up to a power of two.
        self.host = torch.empty((num_slots, *pool.shape[1:]), dtype=pool.dtype)

    def move(self, moves: Sequence[Move]) -> None:
        """Make all copies; from any thread."""
        if not moves or not self._pool.is_cuda:
            self._move(moves)
            return
        with torch.cuda.device(self._pool.device):  # a thread's own, which kernels are launched on
            self._move(moves)
            torch.cuda.current_stream().synchronize()

    def _move(self, moves: Sequence[Move]) -> None:
        for group in _groups(moves):
            sources, targets = [move.source for move in group], [move.target for move in group]
            match group[0].way:
                case Way.OUT:
                    self._copy(self._pool, sources, self.host, targets)
                case Way.IN:
                    self._copy(self.host, sources, self._pool, targets)
                case Way.WITHIN:
                    device = self._pool.device
                    self._backend.copy_blocks(
                        self._pool, torch.tensor(sources, device=device), torch.tensor(targets, device=device)
                    )

    def _copy(self, source: torch.Tensor, source_ids: list[int], target: torch.Tensor, target_ids: list[int]) -> None:
        blocks = self._backend.gather_blocks(
            source, torch.tensor(source_ids, device=source.device)
        )  # [n, L, 2, Hk, B, D]
        self._backend.scatter_blocks(target, torch.tensor(target_ids, device=target.device), blocks.to(target.device))


def _groups(moves: Sequence[Move]) -> list[list[Move]]:
    """Cut moves where their way changes, or one writes or reads what one before it wrote, or writes what that read.

    Each group goes at once, its blocks in any order.
    """
    groups: list[list[Move]] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for move in moves:
        meets = move.source in targets or move.target in sources  # where both are blocks of one memory
        follows = move.target in targets or (move.way is Way.WITHIN and meets)
        if not groups or groups[-1][0].way is not move.way or follows or len(groups[-1]) == MAX_BLOCKS_AT_ONCE:
            groups.append([])
            sources.clear()
            targets.clear()
        groups[-1].append(move)
        sources.add(move.source)
        targets.add(move.target)
    return groups
