"""Copies blocks between the pool and host memory, as the bookkeeping asks for it.

Knows tensors and ids; decides nothing. Invariant: moves take effect in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagewire.engine.host_tier import Move
from pagewire.kernels.backend import Backend

MAX_BLOCKS_AT_ONCE = 64  # bounds the temporary that a copy goes through


class BlockMover:
    """Host memory of `num_slots` blocks beside a pool `[N, L, 2, Hk, B, D]`."""

    def __init__(self, pool: torch.Tensor, num_slots: int, backend: Backend) -> None:
        self._pool = pool
        self._backend = backend
        # Pinned memory is what a device copies from and to at full rate.
        self._host = torch.empty((num_slots, *pool.shape[1:]), dtype=pool.dtype, pin_memory=pool.is_cuda)

    def move(self, moves: Sequence[Move]) -> None:
        """Make all copies."""
        for group in _groups(moves):
            blocks = torch.tensor([move.block_id for move in group], device=self._pool.device)
            slots = torch.tensor([move.slot for move in group])
            if group[0].is_out:
                self._copy(self._pool, blocks, self._host, slots)
            else:
                self._copy(self._host, slots, self._pool, blocks)

    def _copy(
        self, source: torch.Tensor, source_ids: torch.Tensor, target: torch.Tensor, target_ids: torch.Tensor
    ) -> None:
        blocks = self._backend.gather_blocks(source, source_ids)  # [n, L, 2, Hk, B, D]
        self._backend.scatter_blocks(target, target_ids, blocks.to(target.device))


def _groups(moves: Sequence[Move]) -> list[list[Move]]:
    """Cut moves where their direction changes or a target comes again: each group may be made at once."""
    groups: list[list[Move]] = []
    targets: set[int] = set()
    for move in moves:
        target = move.slot if move.is_out else move.block_id
        if (
            not groups
            or groups[-1][0].is_out != move.is_out
            or target in targets
            or len(groups[-1]) == MAX_BLOCKS_AT_ONCE
        ):
            groups.append([])
            targets.clear()
        groups[-1].append(move)
        targets.add(target)
    return groups
