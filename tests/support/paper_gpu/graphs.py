"""Graphs of a paper GPU: what is launched within a capture is kept instead of done, and done by each replay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from paper_gpu.memory import Memory, Weak
from paper_gpu.order import PaperStream, current


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor of a recorded launch, `[...]` on the host, in memory that the graph does not own."""

    tensor: torch.Tensor
    memory: Weak
    writes: bool
    what: str


class PaperGraph:
    """In the place of `torch.cuda.CUDAGraph`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.own: set[int] = set()  # memory that was allocated within the capture
        self._launches: list[Callable[[], object]] = []
        self._uses: list[Use] = []
        self._kept: list[Memory] = []
        self.num_replays = 0

    def keep(self, launch: Callable[[], object], uses: list[tuple[torch.Tensor, Memory, bool]], what: str) -> None:
        """Record a launch."""
        self._launches.append(launch)
        self._uses += [
            Use(tensor, Weak(memory), writes, what) for tensor, memory, writes in uses if id(memory) not in self.own
        ]

    def adopt(self, memory: Memory) -> None:
        """Take memory that was allocated within the capture for the graph's own: it lives as long."""
        self.own.add(id(memory))
        self._kept.append(memory)

    def replay(self) -> None:
        """Do all of it again on the current stream; raises AssertionError where memory that it uses is gone."""
        stream = current()
        stamp = stream.launch()
        for use in self._uses:
            if (memory := use.memory()) is None:
                raise AssertionError(f"a graph's {use.what} uses memory that was freed")
            memory.touch(use.tensor, stamp, stream.clock, writes=use.writes, what=f"a graph's {use.what}")
        self.num_replays += 1
        with torch.inference_mode():
            for launch in self._launches:
                launch()

    def reset(self) -> None:
        """As torch's."""
        self._launches.clear()


class Capturing(threading.local):
    """Which graph the calling thread captures into, and on which stream."""

    graph: PaperGraph | None = None
    stream: PaperStream | None = None

    @contextmanager
    def into(self, graph: PaperGraph, *_: Any, stream: Any = None, **__: Any) -> Iterator[None]:
        """In the place of `torch.cuda.graph`."""
        assert self.graph is None, "a capture within a capture"
        torch.cuda.synchronize()
        stream = stream or PaperStream()
        with torch.cuda.stream(stream):
            self.graph, self.stream = graph, stream
            try:
                yield
            finally:
                self.graph = self.stream = None
