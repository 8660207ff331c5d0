"""A pool on the CUDA device and the rate of a copy within it: what `cuda_ipc` is measured in, and beside."""

from __future__ import annotations

import time

import torch

from pagewire.kvtransfer.transports.device_pool import DevicePool


def is_at_hand() -> bool:
    """True where there is a device."""
    return torch.cuda.is_available()


def name() -> str:
    """The name of the first device, "none" where there is none."""
    return torch.cuda.get_device_name(0) if is_at_hand() else "none"


def make_pool(block_bytes: int, num_blocks: int) -> DevicePool:
    """A pool of random bytes on the first device."""
    blocks = torch.randint(0, 256, (num_blocks, block_bytes), dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    return DevicePool(blocks)


class DeviceCopy:
    """One copy of as many bytes from one place of the device to another."""

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool
        self._other = torch.empty_like(pool.parts[0])

    def seconds(self, num_blocks: int) -> float:
        """Seconds until `num_blocks` were copied, seen from the host."""
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        self._other[:num_blocks].copy_(self._pool.parts[0][:num_blocks])
        torch.cuda.synchronize()
        return time.perf_counter() - start_s
