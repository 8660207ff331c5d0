"""The sum over ranks by torch.distributed: NCCL where each rank has a GPU to itself, gloo on a CPU.

The ranks find each other in a store that lies in the memory file that all of them inherit. On a GPU nobody waits: the
stream does, so that another rank's loss shows in what rank 0 hears of the pass, and not here. Invariant: all ranks have
the same bits; in which order they are added up is the library's, and may hang on the shape.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.kvtransfer.transports.process_group import ProcessGroup, gloo, nccl

LOOPBACK = "127.0.0.1"
ABORT_S = 2.0  # an interpreter should not end beside it


class CollectiveSum:
    """Satisfies `Meeting`; all ranks make theirs at the same time, of the empty memory file `fd`.

    Who does not come is waited for as long as `timeout_s`: by gloo in each sum, by NCCL here. Raises RankLost.
    """

    def __init__(self, shard: Shard, device: torch.device, fd: int, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._options = c10d.AllreduceOptions()
        self._options.asyncOp = False  # on a GPU in its turn on the stream that computes, not on one beside it
        path = f"/proc/self/fd/{os.dup(fd)}"  # never closed: the store opens it at its end too
        try:
            store = c10d.FileStore(path, shard.num_ranks)
            store.set_timeout(self._timeout)
            if device.type == "cuda":
                self._group = _met(lambda: _nccl(store, shard, device, timeout_s, self._options), timeout_s)
            else:
                self._group = gloo(store, shard.rank, shard.num_ranks, LOOPBACK, timeout_s)
        except RuntimeError as error:
            raise RankLost(f"the ranks do not meet: {error}") from None

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `[T, H]`, in place where that can be."""
        total = part.contiguous()
        try:
            work = self._group.allreduce([total], self._options)
            if work is not None:
                work.wait(self._timeout)
        except RuntimeError as error:
            raise RankLost(f"another rank did not come to a sum: {error}") from None
        return total

    def close(self) -> None:
        """Give the group up, which is a matter of this rank alone: destroying it were everybody's."""
        # NCCL waits for what runs on the device, which may be a sum that nobody else comes to.
        aborting = threading.Thread(target=self._abort, name="ranks-abort", daemon=True)
        aborting.start()
        aborting.join(ABORT_S)

    def _abort(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._group.abort()


def _nccl(
    store: c10d.Store, shard: Shard, device: torch.device, timeout_s: float, options: c10d.AllreduceOptions
) -> ProcessGroup:
    """Return a group that has added up once: what NCCL makes at the first sum is made."""
    torch.cuda.set_device(device)  # of this thread
    group = nccl(store, shard.rank, shard.num_ranks, device, timeout_s, blocks=True, interface="lo")
    group.allreduce([torch.zeros(1, device=device)], options)
    torch.cuda.synchronize(device)
    return group


def _met(meet: Callable[[], ProcessGroup], timeout_s: float) -> ProcessGroup:
    """Return what `meet` does, which may never end where another rank does not come. Raises RuntimeError."""
    made: Future[ProcessGroup] = Future()

    def run() -> None:
        try:
            made.set_result(meet())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=run, name="ranks-meet", daemon=True).start()
    try:
        return made.result(timeout_s)
    except TimeoutError:
        raise RuntimeError(f"not all were there within {timeout_s:g} s") from None
