"""Where the ranks of an engine add up their parts of a tensor.

Knows which way suits their devices; nothing of models. Invariant: all ranks of an engine choose the same.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

import torch

from pagewire.engine.devices import are_distinct
from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.rank_parts import RankParts


class Meeting(Protocol):
    """All ranks, at one sum after the other."""

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `[T, H]`, the same bits for all; `part` may be overwritten. Raises RankLost."""
        ...

    def close(self) -> None:
        """Let go of the others, who lose this rank."""
        ...


def meet(shard: Shard, devices: Sequence[str], fd: int, peers: Sequence[socket.socket], timeout_s: float) -> Meeting:
    """Meet the others by a memory file that all have, and a socket to each of them. Raises RankLost.

    NCCL adds up where each rank has a GPU to itself: two of its ranks cannot share one. None waits longer than the
    deadline.
    """
    if are_distinct(devices):
        # With it comes a part of the transports, of which an engine process has none otherwise.
        from pagewire.engine.ranks.collective_sum import CollectiveSum  # noqa: PLC0415

        return CollectiveSum(shard, torch.device(devices[shard.rank]), fd, timeout_s)
    return RankParts(shard, fd, peers, timeout_s)
