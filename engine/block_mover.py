"""Copies blocks within the pool, and between the pool and host memory, as the bookkeeping asks for it.

Knows tensors and ids; decides nothing. Where the pool lies in parts, what is asked is done to each, and each has host
memory of its own. Invariant: moves take effect in their order, and have when `move` returns: whoever learns a block's
id next may be another process.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagewire.engine.block_file import BlockFile
from pagewire.engine.kv_cache import on_device
from pagewire.engine.moves import Move, Way
from pagewire.engine.upload import upload
from pagewire.kernels.backend import Backend

MAX_BLOCKS_AT_ONCE = 64  # bounds the temporary that a copy goes through


class BlockMover:
    """Host memory of `num_slots` blocks, `host`, beside the parts of a pool, each `[N, L, 2, Hk, B, D]`.

    It lies in `file`, where there is one of as many slots.
    """

    def __init__(
        self, parts: Sequence[torch.Tensor], num_slots: int, backend: Backend, file: BlockFile | None = None
    ) -> None:
        self._parts = parts
        self._backend = backend
        self._file = file
        if file is None:
            # Not pinned: copies go through a temporary all the same, and torch rounds pinned memory up to a power of 2.
            self.host = tuple(torch.empty((num_slots, *part.shape[1:]), dtype=part.dtype) for part in parts)
        else:
            self.host = tuple(
                torch.frombuffer(file.part(index), dtype=torch.uint8).view(part.dtype).view(num_slots, *part.shape[1:])
                for index, part in enumerate(parts)
            )

    def move(self, moves: Sequence[Move]) -> None:
        """Make all copies; from any thread."""
        groups = _groups(moves)
        for part, host in zip(self._parts, self.host, strict=True):
            with on_device(part.device):
                for group in groups:
                    self._move(group, part, host)
        if self._file is not None:
            for slot, parked in {move.target: move.parked for move in moves if move.way is Way.OUT}.items():
                self._file.seal(slot, parked)
        if groups and self._parts[0].is_cuda:
            for part in self._parts:
                torch.cuda.current_stream(part.device).synchronize()

    def _move(self, group: Sequence[Move], part: torch.Tensor, host: torch.Tensor) -> None:
        sources, targets = [move.source for move in group], [move.target for move in group]
        match group[0].way:
            case Way.OUT:
                self._copy(part, sources, host, targets)
            case Way.IN:
                self._copy(host, sources, part, targets)
            case Way.WITHIN:
                self._backend.copy_blocks(part, _there(sources, part), _there(targets, part))

    def _copy(self, source: torch.Tensor, source_ids: list[int], target: torch.Tensor, target_ids: list[int]) -> None:
        blocks = self._backend.gather_blocks(source, _there(source_ids, source))  # [n, L, 2, Hk, B, D]
        self._backend.scatter_blocks(target, _there(target_ids, target), blocks.to(target.device))


def _there(ids: list[int], blocks: torch.Tensor) -> torch.Tensor:
    """Return ids of blocks where those lie: `[n]` int64."""
    return upload(torch.tensor(ids), blocks.device)


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
