"""How the ranks of a pod add up their parts of a sum: through memory of the host that all of them have.

Each rank writes its part into its own slot of one memory file and tells each other rank so over an inherited socket;
nothing is listened on, and nobody else gets in. There are two sets of slots, used in turns: who writes into one again
has heard that all have read what lay there. Every rank adds the parts of all in the order of the ranks: all have the
same bits, and a row's bits depend on no other row. Knows nothing of what is summed, which may lie on a device.
Invariants: a rank that is at another sum is `RankLost`, and its numbers are never taken for ours; no wait is longer
than the deadline.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Sequence

import torch

from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.rank_lost import RankLost

SLOT_BYTES = 1 << 20  # in the cache when it is read; a larger part is shown in pieces
_TOLD = struct.Struct("<QI")  # which exchange it is, and its bytes


class RankParts:
    """The parts in the memory file `fd`; `peers` are sockets to the other ranks, each message whole.

    Satisfies `Meeting`.
    """

    def __init__(self, shard: Shard, fd: int, peers: Sequence[socket.socket], timeout_s: float) -> None:
        os.ftruncate(fd, 2 * shard.num_ranks * SLOT_BYTES)
        self._rank = shard.rank
        self._slots = torch.frombuffer(mmap.mmap(fd, 0), dtype=torch.uint8).view(2, shard.num_ranks, SLOT_BYTES)
        self._peers = peers
        self._count = 0
        for peer in peers:
            peer.settimeout(timeout_s)

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `[T, H]`, in the dtype of the parts, added up in fp32. Raises RankLost."""
        mine, total = part.contiguous().view(-1), torch.empty_like(part, memory_format=torch.contiguous_format)
        most = SLOT_BYTES // part.element_size()
        for piece, summed in zip(torch.split(mine, most), torch.split(total.view(-1), most), strict=True):
            first, *others = self.exchange(piece)
            exact = first.float()
            for other in others:
                exact = exact + other  # one by one: the order is the ranks', whatever the shape
            summed.copy_(exact)
        return total

    def exchange(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """Show the others `part` `[n]`, which fills no more than a slot, and return all ranks' in their order.

        They are of use until the next exchange but one. Raises RankLost.
        """
        num_bytes = part.numel() * part.element_size()
        slots = self._slots[self._count % 2, :, :num_bytes].view(part.dtype)  # [R, n]
        slots[self._rank] = part
        told = _TOLD.pack(self._count, num_bytes)
        self._count += 1
        try:
            for peer in self._peers:
                peer.sendall(told)
            for peer in self._peers:
                heard = peer.recv(_TOLD.size)
                if heard != told:
                    raise RankLost("another rank is at another sum" if heard else "another rank has ended")
        except OSError as error:
            raise RankLost(f"another rank did not come to a sum: {error}") from None
        return slots.unbind()

    def close(self) -> None:
        """Let go of the others, who lose this rank."""
        for peer in self._peers:
            peer.close()
