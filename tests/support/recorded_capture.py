"""What stands in for CUDA graphs where there are none: work is kept, and done again on the same memory.

Unlike a graph it runs its Python anew, so a value of the host that slipped in is not caught by itself; therefore
whatever the work may read but its static inputs is poisoned once it was captured (see the tests).
"""

from __future__ import annotations

from collections.abc import Callable

from pagewire.engine.capture import Work


class RecordedCapture:
    """Satisfies `Capture`; `between` is called before each replay."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self.captures = 0
        self.replays = 0
        self._between = between

    def __call__(self, work: Work) -> Work:
        """Do the work as a warm-up would, and return what does it again."""
        work()
        self.captures += 1

        def replay() -> None:
            self._between()
            self.replays += 1
            work()

        return replay
