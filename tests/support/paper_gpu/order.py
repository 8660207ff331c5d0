"""What is known to be done before what: streams and events as vector clocks, and the host, which learns by waiting.

Work happens at once, in the order of the program; whether it had to is what clocks tell. A clock says of each stream
how much of its work is done (Mattern, Virtual Time and Global States of Distributed Systems, 1988). Invariant: a
stream's own clock holds all that is done before whatever is launched on it next.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

Clock = dict[int, int]  # by number of a stream: how many of its launches


@dataclass(frozen=True, slots=True)
class Stamp:
    """The launch `count` of a stream."""

    stream: int
    count: int

    def is_in(self, clock: Clock) -> bool:
        """Whether it is done by then."""
        return clock.get(self.stream, 0) >= self.count


def learn(clock: Clock, of: Clock) -> None:
    """Have a clock know what another does."""
    for stream, count in of.items():
        clock[stream] = max(count, clock.get(stream, 0))


class Order:
    """The clock of the host, and what hangs on what it learns. Its threads are taken to tell each other all."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # of whoever launches, or waits
        self.host: Clock = {}
        self.num_waits = 0  # how often the host waited for a device
        self.forbids_waits: Callable[[], bool] = lambda: False  # within a capture
        self._arrivals: list[Due] = []
        self._checks: list[Due] = []
        self._numbers = itertools.count()

    def number(self) -> int:
        """Return a stream's."""
        return next(self._numbers)

    def when_known(self, stamp: Stamp, then: Callable[[], object]) -> None:
        """Call `then` once the host knows that a launch is done."""
        self._arrivals.append(Due(stamp, then))

    def when_done(self, stamp: Stamp, then: Callable[[], object]) -> None:
        """Call `then` once the host knows that a launch is done, or something is launched that comes behind it."""
        self._checks.append(Due(stamp, then))

    def wait(self, clock: Clock) -> None:
        """Have the host wait until all of a clock is done."""
        if self.forbids_waits():
            raise RuntimeError("the host waits for the device within a capture")
        with self.lock, torch.inference_mode():  # as those are where it writes
            self.num_waits += 1
            learn(self.host, clock)
            self.check(self.host)
            due, self._arrivals = _parted(self._arrivals, self.host)
            for each in due:
                each.then()

    def check(self, clock: Clock) -> None:
        """Do what is to be done when all of a clock is done, where nobody has to know."""
        due, self._checks = _parted(self._checks, clock)
        for each in due:
            each.then()


@dataclass(frozen=True, slots=True)
class Due:
    """Something that is to be done behind a launch."""

    behind: Stamp
    then: Callable[[], object]


def _parted(dues: list[Due], clock: Clock) -> tuple[list[Due], list[Due]]:
    return [due for due in dues if due.behind.is_in(clock)], [due for due in dues if not due.behind.is_in(clock)]


class PaperStream:
    """In the place of `torch.cuda.Stream`."""

    order: Order  # of whoever is entered; see `device.py`
    _all: ClassVar[weakref.WeakSet[PaperStream]] = weakref.WeakSet()

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("cuda", _index(device))
        self.number = self.order.number()
        self.clock: Clock = {}
        self._all.add(self)

    @classmethod
    def all(cls) -> list[PaperStream]:
        """Return those that there are."""
        return [stream for stream in cls._all if stream.order is cls.order]

    def launch(self) -> Stamp:
        """Begin work behind all that is on the stream and all that the host waited for."""
        learn(self.clock, self.order.host)
        self.clock[self.number] = self.clock.get(self.number, 0) + 1
        return Stamp(self.number, self.clock[self.number])

    @property
    def last(self) -> Stamp:
        """What was launched last."""
        return Stamp(self.number, self.clock.get(self.number, 0))

    def wait_stream(self, stream: Any) -> None:
        """As torch's."""
        learn(self.clock, stream.clock)

    def wait_event(self, event: PaperEvent) -> None:
        """As torch's."""
        learn(self.clock, event.clock)

    def record_event(self, event: PaperEvent | None = None) -> PaperEvent:
        """As torch's."""
        event = event or PaperEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """As torch's."""
        self.order.wait(self.clock)

    def query(self) -> bool:
        """As torch's; nothing is done before it was asked for twice."""
        return _asked(self, self.clock)


class PaperEvent:
    """In the place of `torch.cuda.Event`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.clock: Clock = {}

    def record(self, stream: PaperStream | None = None) -> None:
        """As torch's."""
        self.clock = dict((stream or current()).clock)

    def wait(self, stream: PaperStream | None = None) -> None:
        """As torch's."""
        (stream or current()).wait_event(self)

    def synchronize(self) -> None:
        """As torch's."""
        PaperStream.order.wait(self.clock)

    def query(self) -> bool:
        """As torch's; nothing is done before it was asked for twice."""
        return _asked(self, self.clock)


def current(device: torch.device | None = None) -> PaperStream:
    """Return the calling thread's stream of a device."""
    stream: Any = torch.cuda.current_stream(device)
    assert isinstance(stream, PaperStream)
    return stream


def _asked(what: Any, clock: Clock) -> bool:
    if all(PaperStream.order.host.get(stream, 0) >= count for stream, count in clock.items()):
        return True
    if getattr(what, "was_asked", None) == clock:
        PaperStream.order.wait(clock)
        return True
    what.was_asked = dict(clock)
    return False


def _index(device: Any) -> int:
    if device is None:
        return torch.cuda.current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index
