"""How long things take here: measured, smoothed, and split into what one token, one step and one copied block cost.

Takes durations; reads no clock.
"""

from __future__ import annotations

SMOOTHING = 0.2  # weight of the newest measurement


class StepMeter:
    """Running averages in seconds; 0 until measured. Copies are between the pool and host memory."""

    def __init__(self) -> None:
        self.prefill_s_per_token = 0.0
        self.step_s = 0.0
        self.copy_out_s_per_block = 0.0
        self.copy_in_s_per_block = 0.0

    def observe(self, num_prefill_tokens: int, num_decodes: int, elapsed_s: float) -> None:
        """Account for one step; of a mixed one, what a pure decode step would have taken is not the prompt's."""
        if num_prefill_tokens:
            share_s = elapsed_s - (self.step_s if num_decodes else 0.0)
            self.prefill_s_per_token = _blend(self.prefill_s_per_token, max(0.0, share_s) / num_prefill_tokens)
        elif num_decodes:
            self.step_s = _blend(self.step_s, elapsed_s)

    def observe_copies(self, num_blocks: int, elapsed_s: float, *, is_out: bool) -> None:
        """Account for blocks copied out of the pool, or into it."""
        if is_out:
            self.copy_out_s_per_block = _blend(self.copy_out_s_per_block, elapsed_s / num_blocks)
        else:
            self.copy_in_s_per_block = _blend(self.copy_in_s_per_block, elapsed_s / num_blocks)


def _blend(average: float, measured: float) -> float:
    return measured if average == 0.0 else (1 - SMOOTHING) * average + SMOOTHING * measured
