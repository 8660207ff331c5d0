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
        """Wait for a moment; for one that is over just until others had their turn.

        Who is behind would starve them else: it would write request after request, and none were sent.
        """
        await asyncio.sleep(max(0.0, at_s - self.now()))
