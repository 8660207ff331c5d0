"""On how many threads torch and the native ops compute: said once for the process, before a model is loaded."""

from __future__ import annotations

import torch

from pagewire.core import cores
from pagewire.engine.devices import kind_of


def set_threads(threads: int, num_ranks: int = 1, device: str = "cpu") -> None:
    """Compute on `threads` threads; 0: on as many as torch would by itself, and no more than there are usable cores.

    Of several ranks each has an equal share of them, one at least. Beside a GPU 0 is one: what is left for a CPU to do
    is small, and threads that wait for the next of it would keep the cores from everybody else.
    """
    all_threads = threads or (min(torch.get_num_threads(), cores.usable()) if kind_of(device) == "cpu" else 1)
    torch.set_num_threads(max(1, all_threads // num_ranks))
