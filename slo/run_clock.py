"""The clock of a run: seconds since it began, and waiting for a moment of it."""

from __future__ import annotations

import asyncio
import time


class RunClock:
    """Seconds on the monotonic clock of this process since `start`, or since it was made."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin anew at 0."""
        self._begun_s = time.monotonic()

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._begun_s

    async def until(self, at_s: float) -> None:
        """Wait for a moment; not at all for one that is over."""
        if (left_s := at_s - self.now()) > 0:
            await asyncio.sleep(left_s)
