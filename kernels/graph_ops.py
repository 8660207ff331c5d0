"""What a backend does besides for steps that are captured and replayed: draws that wait for nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from pagewire.kernels.sampling_columns import SamplingColumns


@runtime_checkable
class GraphOps(Protocol):
    """A backend whose ops wait for no device and whose lengths are the device's own (`Ragged.on_device`).

    A captured batch is filled up with sequences of no tokens whose slots are negative: it reads no key for them, and
    keeps none of theirs.
    """

    def draw(self, logits: torch.Tensor, columns: SamplingColumns, out: torch.Tensor) -> None:
        """Write a token per row of logits `[n, V]` fp32 to out `[n]` int64, as `Backend.sample` but for typical-p."""
        ...

    def send_tokens(self, tokens: torch.Tensor) -> Callable[[], list[int]]:
        """Send tokens `[n]`, as they are now, to the host; what is returned waits for them.

        It raises ValueError for a row without a finite maximum.
        """
        ...
