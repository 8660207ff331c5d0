"""Pools on CUDA devices as `transport_rigs.pool` makes them on the host, and how many devices there are."""

from __future__ import annotations

import torch
from transport_rigs import NUM_BLOCKS, pool

from pagewire.kvtransfer.transports.device_pool import DevicePool


def num_devices() -> int:
    """How many CUDA devices this process sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_pool(*, filled: bool, device: int = 0) -> DevicePool:
    """`transport_rigs.pool` on a device; what it is filled with is there when it returns."""
    host = pool(filled=filled)
    blocks = torch.stack([torch.frombuffer(bytearray(host.read(i)), dtype=torch.uint8) for i in range(NUM_BLOCKS)])
    host.close()
    made = DevicePool(blocks.to(f"cuda:{device}"))
    torch.cuda.synchronize(device)
    return made
