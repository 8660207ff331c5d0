"""Seconds of what runs on a device: by replays of a CUDA graph there, so that launching costs nothing.

Elsewhere, which is for seeing that a bench works, by the host's clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

REPLAYS = 10
TARGET_S = 0.02  # of a round

Work = Callable[[], object]


def seconds(device: torch.device, works: Sequence[Work], rounds: int = 7) -> float:
    """Return the seconds of one of `works`, which take turns: the median of rounds of many turns each."""
    if device.type != "cuda":
        return _host_seconds(works, rounds)
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):  # compiled, and its memory had, before a graph is captured
        for work in works:
            work()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for work in works:
            work()
    replays = max(1, min(1000, round(TARGET_S / max(1e-6, _replayed(graph, REPLAYS) / REPLAYS))))
    return statistics.median(_replayed(graph, replays) for _ in range(rounds)) / replays / len(works)


def _replayed(graph: torch.cuda.CUDAGraph, times: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _host_seconds(works: Sequence[Work], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        for work in works:
            work()
        found.append((time.perf_counter() - begin_s) / len(works))
    return statistics.median(found)
