"""Process groups of torch.distributed as Pagewire makes them: by themselves, of a store, with bounds for every wait.

gloo on CPU memory, NCCL on CUDA memory. There is no global group and no `new_group`, which all ranks of a parent would
have to call. Knows nothing of what is sent. Invariant: a group that is lost ends nobody's process.
"""

from __future__ import annotations

import math
import os
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch._C import _distributed_c10d as c10d  # what torch.distributed shows, with types; NCCL only where it is built

# The watchdog of ProcessGroupNCCL ends the whole process by default.
_NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "NCCL_RAS_ENABLE": "0",  # a service that listens as long as the process lives
}


class ProcessGroup(Protocol):
    """What of a group is used; both backends have it, their type stubs do not. All raise RuntimeError."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> c10d.Work:
        """Send to a rank."""
        ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> c10d.Work:
        """Fill the tensors with what a rank sends."""
        ...

    def allreduce(self, tensors: list[torch.Tensor], options: c10d.AllreduceOptions) -> c10d.Work | None:
        """Fill the tensors with the sum of all ranks'; None where the current stream does, in its turn."""
        ...

    def abort(self) -> None:
        """Give the group up; a matter of this rank alone."""
        ...


def gloo(store: c10d.Store, rank: int, size: int, host: str, timeout_s: float) -> ProcessGroup:
    """Return rank `rank` of `size`, once all are there; it listens on `host`."""
    options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=host)]
    return cast(ProcessGroup, c10d.ProcessGroupGloo(store, rank, size, options))


def nccl(
    store: c10d.Store,
    rank: int,
    size: int,
    device: torch.device,
    timeout_s: float,
    *,
    blocks: bool = False,
    interface: str = "",
) -> ProcessGroup:
    """Return rank `rank` of `size` on `device`; they meet on `interface`, any for "".

    Where it `blocks` all are there then, or it waits for them for ever; else the first call waits, for `timeout_s`.
    What NCCL reads of the environment is set there, unless it is already.
    """
    if interface:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # that, and none whose name begins so
    for name, value in _NCCL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(math.ceil(timeout_s)))
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    options.config.blocking = int(blocks)
    group = c10d.ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    return cast(ProcessGroup, group)
