"""`SamplingRows` as the numbers that a device reads: made on the host, brought over in one copy with whatever else.

What is made of a parameter is made here, as for a CPU, so that it is the same to the last bit everywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagewire.kernels.sampling_rows import SamplingRows

COLUMNS = 7  # of 8 bytes for each row


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingColumns:
    """The columns of n rows; views of one piece of memory `[7, n]`."""

    floats: torch.Tensor  # [3, n] float64: temperature, top-p, log of min-p
    integers: torch.Tensor  # [4, n] int64: top-k, seed, index, position

    @classmethod
    def view(cls, memory: torch.Tensor) -> SamplingColumns:
        """Return the columns that lie in `[7, n]` int64."""
        return cls(floats=memory[:3].view(torch.float64), integers=memory[3:])

    @classmethod
    def of(cls, rows: SamplingRows, device: torch.device) -> SamplingColumns:
        """Return those of these rows on a device, without waiting for it."""
        memory = torch.empty(COLUMNS, len(rows.seed), dtype=torch.int64, pin_memory=device.type == "cuda")
        cls.view(memory).fill(rows)
        return cls.view(memory.to(device, non_blocking=True))

    def fill(self, rows: SamplingRows) -> None:
        """Write rows into columns on the host; those behind them become greedy ones, whose tokens nobody reads."""
        num_rows = len(rows.seed)
        if num_rows:
            self.floats[:, :num_rows] = _read("d", torch.float64, (rows.temperature, rows.top_p, rows.min_p))
            self.floats[2, :num_rows].log_()  # -inf where it is off
            self.integers[:, :num_rows] = _read("q", torch.int64, (rows.top_k, rows.seed, rows.index, rows.position))
        self.floats[:, num_rows:] = torch.tensor([[0.0], [1.0], [-torch.inf]], dtype=torch.float64)
        self.integers[:, num_rows:] = 0


def _read(code: str, dtype: torch.dtype, columns: Sequence[tuple[float, ...]]) -> torch.Tensor:
    """Return `[columns, rows]` of some rows, by way of an array: torch reads tuples of numbers half as fast."""
    numbers = array(code, sum(columns, ()))  # of a tuple, not of an iterator, which takes longer
    return torch.frombuffer(numbers, dtype=dtype).view(len(columns), -1)
