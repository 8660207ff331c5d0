"""Room for messages that were received and are not in the pool yet: made, used again, and bounded.

Room is used again by a message that fills half of it or more, the last that was used first: it is in the cache. So what
is in use is at most twice as large as what is in it, and a source that keeps to its window never meets a bound of two,
in whatever order large and small messages come and go. Knows sizes; what room is, its maker says. Invariant: what is in
use and what is kept for later never exceed the bound together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pagewire.core.errors import ContractBroken
from pagewire.kvtransfer.wire import Ready

R = TypeVar("R")


class Rooms(Generic[R]):
    """The rooms of one stream; `make` returns one of so many bytes, `max_bytes` is the bound."""

    def __init__(self, make: Callable[[int], R], max_bytes: int) -> None:
        self._make = make
        self._max_bytes = max_bytes
        self._num_bytes = 0  # of all that there are
        self._taken: dict[int, tuple[int, R]] = {}  # by the identity of the message: a copy of one is another
        self._free: list[tuple[int, R]] = []  # sizes and rooms, the last that was used last

    def take(self, ready: Ready, num_bytes: int) -> R:
        """Return room for that many bytes of a message, or more, until `give_back`. Raises ContractBroken."""
        for at in reversed(range(len(self._free))):
            if num_bytes <= self._free[at][0] <= 2 * num_bytes:
                self._taken[id(ready)] = taken = self._free.pop(at)
                return taken[1]
        while self._free and self._num_bytes + num_bytes > self._max_bytes:
            self._num_bytes -= self._free.pop(0)[0]
        if self._num_bytes + num_bytes > self._max_bytes:
            raise ContractBroken(f"more than {self._max_bytes} bytes to be staged")
        room = self._make(num_bytes)
        self._num_bytes += num_bytes
        self._taken[id(ready)] = (num_bytes, room)
        return room

    def of(self, ready: Ready) -> R | None:
        """Return what a message took; None where it took nothing, or gave it back."""
        taken = self._taken.get(id(ready))
        return taken[1] if taken is not None else None

    def give_back(self, ready: Ready) -> None:
        """What a message took may be used again; no-op where it took nothing."""
        if (taken := self._taken.pop(id(ready), None)) is not None:
            self._free.append(taken)

    def clear(self) -> None:
        """Forget all of them."""
        self._taken.clear()
        self._free.clear()
        self._num_bytes = 0
