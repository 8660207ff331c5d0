"""A process's life: starting -> ready -> draining -> stopped, and never back.

Ready means that new work is admitted. Draining means nothing new, finish the rest; liveness stays until stopped.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from enum import IntEnum

log = logging.getLogger(__name__)


class Stage(IntEnum):
    """Where a process stands."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    STOPPED = 3


class Lifecycle:
    """The stage, and events to wait for."""

    def __init__(self) -> None:
        self._stage = Stage.STARTING
        self._draining = asyncio.Event()

    @property
    def stage(self) -> Stage:
        """Where the process stands."""
        return self._stage

    @property
    def is_ready(self) -> bool:
        """True while new work is admitted."""
        return self._stage is Stage.READY

    def ready(self) -> None:
        """Everything is up: admit work, unless draining began meanwhile."""
        if self._stage is Stage.STARTING:
            self._stage = Stage.READY

    def drain(self, reason: str) -> None:
        """Begin to drain; called again, it does nothing."""
        if self._stage < Stage.DRAINING:
            log.info("draining: %s", reason)
            self._stage = Stage.DRAINING
            self._draining.set()

    def stopped(self) -> None:
        """The last request is settled."""
        self._stage = Stage.STOPPED

    async def wait_draining(self) -> None:
        """Return once draining has begun."""
        await self._draining.wait()

    def drain_on_signals(self) -> None:
        """Make SIGTERM and SIGINT begin the drain. Call on the running event loop of the main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain, signal.Signals(number).name)
