"""On the path of a cluster, it has its engine processes compute nothing: a step takes `PACE_MS`, tokens are made up.

All else of an engine process is the real one: its loop begins steps ahead of the ones before, as on a device.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

PACE_MS = "BENCH_PACE_MS"
LEAST_ID = 3  # behind the special ones


class PacedDevice:
    """Runner and launcher of a device that computes one step after another, each for `step_s`."""

    def __init__(self, step_s: float, vocab_size: int) -> None:
        self.num_recaptures = 0
        self._step_s = step_s
        self._num_ids = vocab_size - LEAST_ID
        self._free_s = 0.0  # when it has computed all that was launched

    def launch(self, step: Any) -> Any:
        """Begin a step of plain decodes; see `Launcher`."""
        if any(len(grant.tokens) != 1 or grant.draw is None or grant.forks for grant in step.grants):
            return None
        self._free_s = done_s = max(self._free_s, time.monotonic()) + self._step_s

        def wait() -> dict[str, Any]:
            time.sleep(max(0.0, done_s - time.monotonic()))
            return self._drawn(step)

        return wait

    def run(self, step: Any, _on_group: Any) -> dict[str, Any]:
        """Compute a step; see `Runner`."""
        time.sleep(self._step_s)
        return self._drawn(step)

    def rehearse(self, num_tokens: int = 1) -> None:
        """Compute nothing."""

    def _drawn(self, step: Any) -> dict[str, Any]:
        from pagewire.engine.step import Computed  # noqa: PLC0415

        return {
            name: Computed(token=LEAST_ID + (draw.index + 7 * draw.position) % self._num_ids)
            for grant in step.grants
            for name, draw in grant.draws().items()
        }


def _replace_runner() -> None:
    from pagewire.engine import assembly  # noqa: PLC0415

    step_s, loop = float(os.environ[PACE_MS]) / 1e3, assembly.EngineLoop

    def paced_loop(scheduler: Any, runner: Any, *others: Any, **named: Any) -> Any:
        device = PacedDevice(step_s, scheduler.limits.vocab_size)
        return loop(scheduler, device, *others, **{**named, "launcher": device})

    assembly.EngineLoop = paced_loop  # type: ignore[misc,assignment]


if PACE_MS in os.environ and "pagewire.engine.process" in sys.orig_argv:
    _replace_runner()
