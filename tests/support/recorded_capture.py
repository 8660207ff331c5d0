"""What stands in for CUDA graphs where there are none: work is kept, and done again on the same memory.

Unlike a graph it runs its Python anew, so a test that wants to know what a replay reads poisons all other memory of the
steps before it.
"""

from __future__ import annotations

from pagewire.engine.capture import Work


class RecordedCapture:
    """Satisfies `Capture`, and counts. With `warms_up` it does the work once before it records it, as devices do."""

    def __init__(self, *, warms_up: bool = False) -> None:
        self._warms_up = warms_up
        self.captures = 0
        self.replays = 0

    def __call__(self, work: Work) -> Work:
        """Return what does the work."""
        if self._warms_up:
            work()
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            work()

        return replay
