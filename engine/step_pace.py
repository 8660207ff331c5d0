"""How much prompt goes into a step so that it ends in time: a target in seconds turned into a token budget.

Pure: decides from the fitted cost of steps, reads no clock. Invariants: never less than `least`, so that prompts
advance whatever decodes cost; never more than twice what was seen, so that a law fitted on small steps is not trusted
on large ones.
"""

from __future__ import annotations

from pagewire.engine.step_cost import StepCost, StepShape

MARGIN = 2.5  # mean absolute errors of the prediction that are left as room
GROWTH = 2  # over the largest prefill that was seen


class StepPace:
    """One engine's. `target_s` is what a step should take at most."""

    def __init__(self, target_s: float, *, least: int, most: int) -> None:
        if target_s <= 0 or not 1 <= least <= most:
            raise ValueError(f"a step of {target_s} s with {least} to {most} prompt tokens cannot be aimed at")
        self.cost = StepCost()
        self.least_prefill = least
        self._target_s = target_s
        self._most = most
        self._seen = least

    def most_prefill(self, decodes: StepShape, depth: int) -> int:
        """Return how many prompt tokens may go beside `decodes`, the first of them `depth` tokens into its prompt."""
        left_s = self._target_s - self.cost.predict_s(decodes) - MARGIN * self.cost.error_s
        fitting = min(self.cost.most_prefill(left_s, depth), GROWTH * self._seen, self._most)
        return max(self.least_prefill, fitting)

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """Account for a step that took `elapsed_s`."""
        self.cost.observe(shape, elapsed_s)
        self._seen = max(self._seen, shape.prefill_tokens)
