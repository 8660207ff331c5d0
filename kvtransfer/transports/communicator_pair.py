"""One end's part in a pair of ranks: a communicator that is built as often as it is needed, and the thread for it.

Knows when one is built anew and when an idle one closes; knows nothing of messages. Invariant: there is one
communicator at a time at most, and none once it is closed.
"""

from __future__ import annotations

import asyncio

import torch
from torch._C import _distributed_c10d as c10d

from pagewire.core.errors import ContractBroken, StreamLost
from pagewire.kvtransfer.transports.communicator import Communicator
from pagewire.kvtransfer.transports.worker import Worker


class CommunicatorPair:
    """One end's communicator, built from `store` as often as it is needed, and the thread that it is used in.

    `host` is our own address, to listen on. What it is used for may take `timeout_s` seconds each.
    """

    def __init__(self, rank: int, device: torch.device, *, host: str, timeout_s: float) -> None:
        self.store: c10d.Store | None = None
        self.worker = Worker(f"collective-{rank}")
        self._rank = rank
        self._device = device
        self._host = host
        self._timeout_s = timeout_s
        self._number = 0
        self._communicator: Communicator | None = None
        self._is_closed = False
        self._idle: asyncio.TimerHandle | None = None

    @property
    def is_up(self) -> bool:
        """True between `build` and `hang_up`."""
        return self._communicator is not None

    def communicator(self) -> Communicator:
        """Return what was built. Raises ContractBroken where nothing was."""
        if self._communicator is None:
            raise ContractBroken("there is no communicator")
        return self._communicator

    async def build(self) -> None:
        """Wait for the peer; both count the communicators that they build."""
        self._number += 1
        await self.worker.run(self._build)

    def stay(self) -> None:
        """It is used: it does not close for being idle."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def hang_up_after(self, idle_s: float) -> None:
        """Close it unless it is used within that time."""
        self._idle = asyncio.get_running_loop().call_later(idle_s, self.hang_up)

    def hang_up(self) -> None:
        """Let go of it; a next one can be built. The loop and the worker may both come here."""
        gone, self._communicator = self._communicator, None
        if gone is not None:
            gone.abort()

    def close(self) -> None:
        """Let go of everything, for good."""
        self._is_closed = True
        self.stay()
        self.worker.close()
        self.hang_up()
        self.store = None

    def _build(self) -> None:
        if self.store is None:
            raise StreamLost("the pair is not open")
        self._communicator = Communicator(
            self.store,
            number=self._number,
            rank=self._rank,
            device=self._device,
            host=self._host,
            timeout_s=self._timeout_s,
        )
        if self._is_closed:  # nobody waits for it any more
            self.hang_up()
