"""What the steps of an engine came to: the tokens of each, and what became of a sample of the pool's blocks.

Pure: plain numbers that `vllm_metrics` shows. For the one thread that hears of steps.
"""

from __future__ import annotations

from pagewire.core.distribution import Distribution
from pagewire.core.engine_messages import StepDone

# vLLM's bounds.
TOKENS = (1, *(2**power for power in range(3, 15)))
LIFE_S = (
    *(step * 10**power for power in range(-3, 1) for step in (1, 2, 5)),
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1200,
    1800,
)


class StepCounts:
    """Since the pod has its role."""

    def __init__(self) -> None:
        self.tokens = Distribution(TOKENS)
        self.lived_s = Distribution(LIFE_S)
        self.idle_s = Distribution(LIFE_S)
        self.gap_s = Distribution(LIFE_S)

    def note(self, step: StepDone) -> None:
        """Count a step, or what came about between two."""
        if step.num_tokens:
            self.tokens.observe(step.num_tokens)
        for life in step.lives:
            self.lived_s.observe(life.lived_s)
            self.idle_s.observe(life.idle_s)
            for gap_s in life.gaps_s:
                self.gap_s.observe(gap_s)
