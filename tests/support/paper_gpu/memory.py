"""Memory of a paper GPU: which work reads and writes it, and whether anything says in which order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from paper_gpu.order import Clock, PaperStream, Stamp


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes `first` .. `end - 1`, read or written."""

    first: int
    end: int
    writes: bool
    stamp: Stamp
    what: str


class Memory:
    """One allocation. Who uses it on another stream than its own has to say so before it is freed.

    `complain` takes what is wrong where nothing can be raised.
    """

    def __init__(self, stream: PaperStream, complain: Callable[[str], None]) -> None:
        self.stream = stream
        self.is_watched = True  # whether accesses are compared; a pool's blocks have owners of their own
        self._complain = complain
        self._accesses: list[Access] = []
        self._is_recorded: set[int] = set()  # streams that torch was told of

    def touch(self, tensor: torch.Tensor, stamp: Stamp, clock: Clock, *, writes: bool, what: str) -> None:
        """Note that a launch reads or writes where a host tensor lies; raises AssertionError for a race."""
        first, end = extent(tensor)
        if self.is_watched:
            for other in self._accesses:
                meets = other.first < end and first < other.end and (writes or other.writes)
                if meets and not other.stamp.is_in(clock):
                    raise AssertionError(f"{what} races with {other.what} on another stream")
        host = self.stream.order.host
        self._accesses = [
            other
            for other in self._accesses
            if not other.stamp.is_in(host)
            and not (other.stamp.stream == stamp.stream and (writes or not other.writes)
                     and first <= other.first and other.end <= end)
        ]  # fmt: skip
        self._accesses.append(Access(first, end, writes, stamp, what))

    def record_stream(self, stream: PaperStream) -> None:
        """As `Tensor.record_stream`."""
        self._is_recorded.add(stream.number)

    def __del__(self) -> None:
        """Given back to the stream that it came from: whoever gets it next writes to it there."""
        done = dict(self.stream.clock)
        for stream, count in self.stream.order.host.items():
            done[stream] = max(count, done.get(stream, 0))
        for access in self._accesses:
            stream = access.stamp.stream
            if stream not in (self.stream.number, *self._is_recorded) and not access.stamp.is_in(done):
                self._complain(f"memory was freed while {access.what} used it on another stream")


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one behind its last."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return first, first
    last: int = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * size


Weak = weakref.ref[Memory]
