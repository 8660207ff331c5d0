"""Seconds of what runs on a device: by replays of a CUDA graph there, so that launching costs nothing, or launched.

Elsewhere, which is for seeing that a bench works, by the host's clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

TURNS = 10
TARGET_S = 0.02  # of a round

Work = Callable[[], object]


def seconds(device: torch.device, works: Sequence[Work], rounds: int = 7, *, in_graph: bool = True) -> float:
    """Return the seconds of one of `works`, which take turns: the median of rounds of many turns each.

    Not `in_graph` they are launched one by one: for what takes longer than launching it does.
    """
    if device.type != "cuda":
        return _host_seconds(works, rounds)

    def all_of_them() -> None:
        for work in works:
            work()

    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):  # compiled, and its memory had, before a graph is captured
        all_of_them()
    torch.cuda.synchronize(device)
    turn = all_of_them
    if in_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            all_of_them()
        turn = graph.replay
    turns = max(1, min(1000, round(TARGET_S / max(1e-6, _timed(turn, TURNS) / TURNS))))
    return statistics.median(_timed(turn, turns) for _ in range(rounds)) / turns / len(works)


def _timed(turn: Callable[[], object], times: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        turn()
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
