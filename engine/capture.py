"""How work on a device is recorded once and done again: a seam, and CUDA's side of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], None]
WARM_UPS = 2  # compile what is compiled, and let libraries take their memory, before anything is recorded


class Capture(Protocol):
    """Records work. What it reads and writes must stay where it is, and it must wait for nothing."""

    def __call__(self, work: Work) -> Work:
        """Return what does the same again, on whatever is in the same memory by then."""
        ...


class CudaCapture:
    """CUDA graphs of one device that share the memory of what lives only within a replay: one replay at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """Warm up on a side stream, then capture there. See `Capture`."""
        own = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(own)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        own.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may copy meanwhile: what they do is no part of the graph, and no error.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._memory, stream=self._stream, capture_error_mode=mode):
            work()
        graph.replay()  # the first brings the graph to the device, which is not to hold a request up
        return graph.replay  # bound: it keeps the graph
