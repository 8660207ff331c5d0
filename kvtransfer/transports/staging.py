"""Contiguous room beside a pool, and the copies between the two, on a CPU or on a CUDA device.

Knows blocks and bytes; knows nothing of what travels. Invariant: `gather` and `scatter` have ended when they return, on
a device too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pagewire.kvtransfer.carrier import Move
from pagewire.kvtransfer.transport import BlockMemory
from pagewire.kvtransfer.transports.device_pool import DevicePool


class Staging:
    """Bytes that grow to the largest message, as a tensor, and as a view where a CPU can read them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.num_bytes = 0
        self.tensor = torch.empty(0, dtype=torch.uint8, device=device)
        self.view = memoryview(b"")

    def sized(self, num_bytes: int) -> Staging:
        """Have room for `num_bytes`; what was in it may be gone."""
        if self.num_bytes < num_bytes:
            self.num_bytes = num_bytes
            if self._device.type == "cpu":
                self.view = memoryview(bytearray(num_bytes))
                self.tensor = torch.frombuffer(self.view, dtype=torch.uint8)
            else:
                self.tensor = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return self


def device_of(memory: BlockMemory) -> torch.device:
    """Return where a pool lies."""
    return torch.device("cuda", memory.devices[0]) if isinstance(memory, DevicePool) else torch.device("cpu")


def gather(memory: BlockMemory, block_ids: Sequence[int], staging: Staging) -> None:
    """Copy blocks of the pool into staging, one behind the other. Raises IndexError outside the pool."""
    size = memory.block_bytes
    if isinstance(memory, DevicePool):
        memory.copy_out(block_ids, staging.tensor[: len(block_ids) * size].view(-1, size))
        return
    for position, block_id in enumerate(block_ids):
        staging.view[position * size : (position + 1) * size] = memory.read(block_id)


def scatter(staging: Staging, memory: BlockMemory, moves: Sequence[Move]) -> None:
    """Copy blocks from staging on a device into the pool there. Raises IndexError outside the pool."""
    if not isinstance(memory, DevicePool):
        raise TypeError("a pool on a host")
    size = memory.block_bytes
    memory.copy_in(staging.tensor[: staging.num_bytes // size * size].view(-1, size), moves)


def scatter_summed(
    staging: Staging, memory: BlockMemory, moves: Sequence[Move], seed: Callable[[int], int]
) -> list[int]:
    """Copy blocks from staging into a pool on the host; return the checksum of each, with the seed of its position.

    Raises IndexError outside the pool.
    """
    size = memory.block_bytes
    return [
        memory.write_summed(block_id, staging.view[position * size : (position + 1) * size], seed(position))
        for position, block_id in moves
    ]
