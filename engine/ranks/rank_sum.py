"""The sum of a tensor over all ranks.

Every rank has the parts of all and adds them in the order of the ranks: all have the same bits, and a row's bits depend
on no other row. A pass through the layers has a fixed number of sums. Invariant: a rank that fails within a pass takes
part in the rest of its sums, with zeros (`finish`), so that nobody waits for it and all begin the next pass together.
Every wait has a deadline. Knows nothing of how the parts get about.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch

from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.ranks.rank_parts import SLOT_BYTES, RankParts


class RankSum:
    """Sums `[T, H]` tensors, `per_pass` of them in each pass; of use once `connect` returned. For one thread."""

    def __init__(self, shard: Shard, *, per_pass: int, hidden_size: int, dtype: torch.dtype) -> None:
        self._shard = shard
        self._per_pass = per_pass
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._num_summed = 0
        self._parts: RankParts | None = None

    def connect(self, fd: int, peers: Sequence[socket.socket], timeout_s: float) -> None:
        """Meet the others by a memory file that all have, and a socket to each of them.

        None waits longer than the deadline.
        """
        self._parts = RankParts(self._shard, fd, peers, timeout_s)

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `[T, H]`, in the dtype of the parts, added up in fp32. Raises RankLost."""
        if self._parts is None:
            raise RankLost("the ranks have parted, or never met")
        mine, total = part.contiguous().view(-1), torch.empty_like(part, memory_format=torch.contiguous_format)
        most = SLOT_BYTES // part.element_size()
        try:
            for piece, summed in zip(torch.split(mine, most), torch.split(total.view(-1), most), strict=True):
                first, *others = self._parts.exchange(piece)
                exact = first.float()
                for other in others:
                    exact = exact + other  # one by one: the order is the ranks', whatever the shape
                summed.copy_(exact)
        except RankLost:
            self.close()
            raise
        self._num_summed += 1
        return total

    def finish(self, num_rows: int) -> None:
        """End a pass of so many rows: take part in the sums that are left of it. Raises RankLost."""
        missing = self._per_pass - self._num_summed
        if missing and self._parts is not None:
            zeros = torch.zeros(num_rows, self._hidden_size, dtype=self._dtype)
            for _ in range(missing):
                self(zeros)
        self._num_summed = 0

    def close(self) -> None:
        """Let go of the others."""
        if self._parts is not None:
            self._parts.close()
            self._parts = None
