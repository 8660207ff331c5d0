"""The sum of a tensor over all ranks: gloo on CPUs, NCCL on CUDA devices.

Every rank has the parts of all and adds them in the order of the ranks: all have the same bits, and a row's bits depend
on no other row. A pass through the layers has a fixed number of sums. Invariant: a rank that fails within a pass takes
part in the rest of its sums, with zeros (`finish`), so that nobody waits for it and all begin the next pass together.
Every wait has a deadline.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol, cast

import torch
from torch._C import _distributed_c10d as c10d  # what torch.distributed shows; NCCL only where it is built

from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.rank_lost import RankLost

LOOPBACK = "127.0.0.1"  # the ranks of a pod are on one host
# With one, gloo's next message waits for a tick of the kernel's clock: 4 ms in place of 0.6.
GLOO_THREADS = 2


class _Group(Protocol):
    """What of a process group is used; both backends have it, their type stubs do not."""

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> c10d.Work: ...


class RankSum:
    """Sums `[T, H]` tensors, `per_pass` of them in each pass; of use once `connect` returned. For one thread."""

    def __init__(
        self, shard: Shard, *, per_pass: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shard = shard
        self._per_pass = per_pass
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._num_summed = 0
        self._group: _Group | None = None
        self._is_lost = False

    def connect(self, store_path: str, timeout_s: float) -> None:
        """Meet the others by a file that all have; none waits longer than the deadline, now or later.

        Raises RankLost.
        """
        store = c10d.FileStore(store_path, self._shard.num_ranks)
        store.set_timeout(timedelta(seconds=timeout_s))
        build = _nccl if self._device.type == "cuda" else _gloo
        try:
            self._group = build(store, self._shard, timeout_s)
        except RuntimeError as error:
            raise RankLost(f"the ranks did not meet: {_first_line(error)}") from None

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `[T, H]`, in the dtype of the parts, added up in fp32. Raises RankLost."""
        if self._is_lost or self._group is None:
            raise RankLost("the ranks have parted, or never met")
        parts = part.new_empty(self._shard.num_ranks, *part.shape)  # [R, T, H]
        try:
            self._group.allgather([list(parts.unbind())], [part.contiguous()]).wait()
        except RuntimeError as error:
            self._is_lost = True
            raise RankLost(f"a sum over the ranks failed: {_first_line(error)}") from None
        self._num_summed += 1
        total = parts[0].float()
        for other in parts[1:]:
            total = total + other  # one by one: the order is the ranks', whatever the shape
        return total.to(part.dtype)

    def finish(self, num_rows: int) -> None:
        """End a pass of so many rows: take part in the sums that are left of it. Raises RankLost."""
        missing = self._per_pass - self._num_summed
        if missing and not self._is_lost:
            zeros = torch.zeros(num_rows, self._hidden_size, dtype=self._dtype, device=self._device)
            for _ in range(missing):
                self(zeros)
        self._num_summed = 0

    def close(self) -> None:
        """Let go of the group, while the file that the ranks met by is open still: letting go opens it once more."""
        self._group, self._is_lost = None, True


def _gloo(store: c10d.Store, shard: Shard, timeout_s: float) -> _Group:
    options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = GLOO_THREADS
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    return cast(_Group, c10d.ProcessGroupGloo(store, shard.rank, shard.num_ranks, options))


def _nccl(store: c10d.Store, shard: Shard, timeout_s: float) -> _Group:
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    return cast(_Group, c10d.ProcessGroupNCCL(store, shard.rank, shard.num_ranks, options))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
