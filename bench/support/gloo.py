"""A communicator of two processes over loopback and a pool's bytes through it: `collective` is measured beside it."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

HOST = "127.0.0.1"


class GlooPair:
    """One end; rank 1 listens. Sends and receives in pieces."""

    def __init__(self, port: int, rank: int) -> None:
        store = dist.TCPStore(HOST, port, 2, is_master=rank == 1, wait_for_workers=False)
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("bench", store), rank, 2)
        self._other = 1 - rank

    def send(self, data: memoryview, piece_bytes: int) -> None:
        """Send `data` as it lies."""
        for piece in torch.frombuffer(data, dtype=torch.uint8).split(piece_bytes):
            self._group.send([piece], self._other, 0).wait()

    def receive(self, data: memoryview, piece_bytes: int) -> float:
        """Fill `data`; returns the moment at which it was full."""
        for piece in torch.frombuffer(data, dtype=torch.uint8).split(piece_bytes):
            self._group.recv([piece], self._other, 0).wait()
        return time.perf_counter()
