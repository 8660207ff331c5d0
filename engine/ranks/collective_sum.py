"""The sum over ranks by torch.distributed: NCCL where each rank has a GPU to itself, gloo on a CPU.

The ranks find each other in a store that lies in the memory file that all of them inherit. On a GPU nobody waits: the
stream does, so that another rank's loss shows in what rank 0 hears of the pass, and not here. Invariant: all ranks have
the same bits; in which order they are added up is the library's, and may hang on the shape.
"""

from __future__ import annotations

import contextlib
import os
import threading
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.kvtransfer.transports.process_group import gloo, nccl

LOOPBACK = "127.0.0.1"


class CollectiveSum:
    """Satisfies `Meeting`; all ranks make theirs at the same time, of the empty memory file `fd`.

    None waits longer than `timeout_s`. Raises RankLost.
    """

    def __init__(self, shard: Shard, device: torch.device, fd: int, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._is_on_device = device.type == "cuda"
        path = f"/proc/self/fd/{os.dup(fd)}"  # never closed: the store opens it at its end too
        try:
            store = c10d.FileStore(path, shard.num_ranks)
            store.set_timeout(self._timeout)
            self._group = (
                nccl(store, shard.rank, shard.num_ranks, device, timeout_s, interface="lo")
                if self._is_on_device
                else gloo(store, shard.rank, shard.num_ranks, LOOPBACK, timeout_s)
            )
        except RuntimeError as error:
            raise RankLost(f"the ranks do not meet: {error}") from None

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `[T, H]`, in place where that can be."""
        total = part.contiguous()
        try:
            work = self._group.allreduce([total])
            if self._is_on_device:
                work.wait()  # our stream does, not we
            else:
                work.wait(self._timeout)
        except RuntimeError as error:
            raise RankLost(f"another rank did not come to a sum: {error}") from None
        return total

    def close(self) -> None:
        """Give the group up, which is a matter of this rank alone: destroying it were everybody's."""
        # NCCL waits for what runs on the device, which may be a sum that nobody else comes to.
        threading.Thread(target=self._abort, name="ranks-abort", daemon=True).start()

    def _abort(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._group.abort()
