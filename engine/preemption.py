"""How the KV of a preempted sequence comes back: computed anew, or copied to host memory and back.

    recompute = tokens x prefill seconds per token        swap = blocks x (seconds out + seconds in)

Pure: rates are measured elsewhere. Knows no sequences and no pool.
"""

from __future__ import annotations

from enum import StrEnum

from pagewire.engine.step_meter import StepMeter


class PreemptionMode(StrEnum):
    """What may be done: whichever is cheaper, or always the one."""

    AUTO = "auto"
    RECOMPUTE = "recompute"
    SWAP = "swap"


class Preemption:
    """Chooses between the two by what `meter` has measured."""

    def __init__(self, mode: PreemptionMode = PreemptionMode.AUTO, meter: StepMeter | None = None) -> None:
        self.mode = mode
        self.meter = meter or StepMeter()

    def swaps(self, num_tokens: int, num_blocks: int, num_slots: int) -> bool:
        """Return whether to copy `num_blocks` blocks with `num_tokens` tokens, where host memory has `num_slots`.

        Until both are measured it copies: that is how copying comes to be measured.
        """
        if self.mode is not PreemptionMode.AUTO or num_slots < num_blocks:
            return self.mode is PreemptionMode.SWAP and num_slots > 0
        meter = self.meter
        recompute_s = num_tokens * meter.prefill_s_per_token
        swap_s = num_blocks * (meter.copy_out_s_per_block + meter.copy_in_s_per_block)
        return recompute_s == 0.0 or swap_s <= recompute_s
