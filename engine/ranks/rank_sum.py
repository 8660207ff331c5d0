"""The sums of a pass over all ranks, of which there is a fixed number.

Invariants: a rank that fails within a pass takes part in the rest of its sums, with zeros (`finish`), so that nobody
waits for it and all begin the next pass together; one that cannot even do that is lost, for its next sum would meet the
others' last. Knows nothing of how parts are added up.
"""

from __future__ import annotations

import torch

from pagewire.engine.ranks.meeting import Meeting
from pagewire.engine.ranks.rank_lost import RankLost


class RankSum:
    """Sums `[T, H]` tensors on `device`, `per_pass` of them in each pass; of use once `connect` was called.

    For one thread.
    """

    def __init__(self, *, per_pass: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._per_pass = per_pass
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._num_summed = 0
        self._meeting: Meeting | None = None

    def connect(self, meeting: Meeting) -> None:
        """Add up with the ranks that are met there from now on."""
        self._meeting = meeting

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `[T, H]`; `part` may be overwritten. Raises RankLost."""
        if self._meeting is None:
            raise RankLost("the ranks have parted, or never met")
        try:
            total = self._meeting.sum(part)
        except RankLost:
            self.close()
            raise
        self._num_summed += 1
        return total

    def finish(self, num_rows: int) -> None:
        """End a pass of so many rows: take part in the sums that are left of it. Raises RankLost."""
        missing, self._num_summed = self._per_pass - self._num_summed, 0
        if not missing or self._meeting is None:
            return
        try:
            part = torch.empty(num_rows, self._hidden_size, dtype=self._dtype, device=self._device)
            for _ in range(missing):
                self._meeting.sum(part.zero_())  # a sum may overwrite it
        except Exception as error:
            self.close()
            raise RankLost(f"a pass that failed cannot be ended: {error}") from error

    def close(self) -> None:
        """Let go of the others."""
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None
