"""How long things take here: measured, smoothed, and split into what one token, one step and one copied block cost.

Takes durations; reads no clock.
"""

from __future__ import annotations

from pagewire.engine.row_cost import SMOOTHING, Recent, RowCost

LEAST_SPREAD = 0.25  # sequences squared; less tells nothing of a slope
TREND_SMOOTHING = 0.05  # the same where a slope is wanted: batches change more slowly than steps vary


class StepMeter:
    """Running averages in seconds; 0 until measured. Copies are between the pool and host memory."""

    def __init__(self) -> None:
        self.prefill_s_per_token = 0.0
        self.step_s = 0.0
        self.step_sequences = 0.0  # in the steps behind `step_s`
        self._spread = 0.0  # of the number of sequences, and of it together with the seconds
        self._spread_s = 0.0
        self._num_steps = 0
        self._decodes: dict[int, Recent] = {}  # steps of so many decodes and nothing else
        self._rows = RowCost()
        self.copy_out_s_per_block = 0.0
        self.copy_in_s_per_block = 0.0

    def observe(self, num_prefill_tokens: int, num_decodes: int, elapsed_s: float, num_drafted: int = 0) -> None:
        """Account for one step; of a mixed one, what others would have taken is not the prompt's, nor the drafts'.

        A drafted token is not taken to cost more than all decodes, or one slow step would tell too much.
        """
        self._num_steps += 1
        if num_prefill_tokens:
            others_s = (self.step_s if num_decodes else 0.0) + self.draft_s(num_decodes, num_drafted)
            share_s = max(0.0, elapsed_s - others_s)
            self.prefill_s_per_token = _blend(self.prefill_s_per_token, share_s / num_prefill_tokens)
        elif num_drafted:
            if (plain_s := self.decode_s(num_decodes)) is not None:
                more_s = min(max(0.0, elapsed_s - plain_s), num_drafted * plain_s)
                self._rows.observe(num_decodes, num_drafted, more_s, self._num_steps)
        elif num_decodes:
            self._decodes.setdefault(num_decodes, Recent(elapsed_s, self._num_steps)).blend(elapsed_s, self._num_steps)
            self._observe_batch(num_decodes, elapsed_s)

    @property
    def step_s_per_sequence(self) -> float:
        """What a decode step takes longer with a sequence more; 0 while all had about as many."""
        return max(0.0, self._spread_s / self._spread) if self._spread >= LEAST_SPREAD else 0.0

    def decode_s(self, num_decodes: int) -> float | None:
        """Return what a step of so many decodes alone takes, None until there was one."""
        known = self._decodes.get(num_decodes)
        return None if known is None else known.seconds

    def draft_s(self, num_decodes: int, num_drafted: int) -> float:
        """Return what a step of so many decodes takes longer with drafted tokens; 0 until measured."""
        return self._rows.more_s(num_decodes, num_drafted)

    def _observe_batch(self, num_decodes: int, elapsed_s: float) -> None:
        if self.step_s:
            off, off_s = num_decodes - self.step_sequences, elapsed_s - self.step_s
            self._spread += TREND_SMOOTHING * (off * off - self._spread)
            self._spread_s += TREND_SMOOTHING * (off * off_s - self._spread_s)
        self.step_sequences = _blend(self.step_sequences, float(num_decodes))
        self.step_s = _blend(self.step_s, elapsed_s)

    def observe_copies(self, num_blocks: int, elapsed_s: float, *, is_out: bool) -> None:
        """Account for blocks copied out of the pool, or into it."""
        if is_out:
            self.copy_out_s_per_block = _blend(self.copy_out_s_per_block, elapsed_s / num_blocks)
        else:
            self.copy_in_s_per_block = _blend(self.copy_in_s_per_block, elapsed_s / num_blocks)


def _blend(average: float, measured: float) -> float:
    return measured if average == 0.0 else (1 - SMOOTHING) * average + SMOOTHING * measured
