"""The bounded queue of requests for which no pod has room: who is next, who gives way, when to come back.

Pure: time is a parameter. Knows ranks and what its owner says of pods, by key; nothing of blocks.

    rank = arrived + priority x 5 s            the lowest is served first; whoever came first wins a tie

Nobody is overtaken on a pod that it could use itself: while the first of those that could use a pod finds no room
there, nobody behind it gets any. A request that arrived at t ranks before all that arrive after t + `SPAN_S`, whatever
their priorities, so nobody starves. Where one too many waits, the last of the tenant that has most of
them leaves, of those that are no more urgent than the last of all: whoever asks for much keeps out nobody but itself.
Invariants: never more than `max_waiting` wait, but for those that are let in; every `join` that returned is followed by
exactly one `leave`.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pagewire.core.sequence_spec import MAX_PRIORITY
from pagewire.router.drain_rate import DrainRate
from pagewire.router.refusals import Reason, Refused

S_PER_PRIORITY = 5.0  # as in the pods' own queues
SPAN_S = 2 * MAX_PRIORITY * S_PER_PRIORITY

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    """One request in the queue; `what` is its owner's. One that is let in is not sent away: it may have streamed."""

    what: T
    rank: tuple[float, int]
    priority: int
    tenant: str
    is_let_in: bool


class WaitQueue(Generic[T]):
    """Who waits, in the order of ranks."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiters: list[Waiter[T]] = []
        self._arrivals = 0
        self._drain = DrainRate()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def __iter__(self) -> Iterator[T]:
        """Yield all that wait, the next one first."""
        return (waiter.what for waiter in self._waiters)

    def join(
        self, what: T, *, arrived_s: float, priority: int, now_s: float, tenant: str = "", is_let_in: bool = False
    ) -> tuple[Waiter[T], Waiter[T] | None]:
        """Return the new waiter, and who had to leave for it when the queue was full; raises Refused when it has to."""
        self._arrivals += 1
        waiter = Waiter(what, (arrived_s + priority * S_PER_PRIORITY, self._arrivals), priority, tenant, is_let_in)
        insort(self._waiters, waiter, key=lambda each: each.rank)
        others = [each for each in self._waiters if not each.is_let_in]
        if len(others) <= self._max_waiting:  # one that is let in is not among them: the bound holds as before
            return waiter, None
        evicted = _one_too_many(others)
        self._waiters.remove(evicted)
        if evicted is waiter:
            message = f"{self._max_waiting} requests wait for a pod with room, which is the bound"
            raise Refused(Reason.QUEUE_FULL, message, retry_after_s=self.retry_after_s(now_s))
        return waiter, evicted

    def wait(self, now_s: float) -> None:
        """Somebody is kept waiting, from now on at the latest."""
        self._drain.full(now_s)

    def leave(self, waiter: Waiter[T], now_s: float, *, is_served: bool) -> None:
        """Take a waiter out, served or not; who gave way to another is out already."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if is_served:
            self._drain.freed(now_s, is_full=bool(self._waiters))

    def next(self, pods_of: Callable[[T], Mapping[str, bool]], num_pods: int) -> tuple[T, frozenset[str]] | None:
        """Return who is to be served now, and the pods that it must not have; None while nobody can be.

        `pods_of` gives a waiter's pods and whether each has room for it; `num_pods` is how many there are in all.
        """
        taken: set[str] = set()  # by those before, who wait for room there
        for waiter in self._waiters:
            pods = pods_of(waiter.what)
            closed = frozenset(key for key, has_room in pods.items() if not has_room or key in taken)
            if len(closed) < len(pods):
                return waiter.what, closed
            taken |= pods.keys()
            if len(taken) >= num_pods:
                return None
        return None

    def retry_after_s(self, now_s: float) -> float:
        """Return the seconds in which all that wait should be served, and one more."""
        return self._drain.retry_after_s(len(self._waiters) + 1, now_s)


def _one_too_many(waiters: Sequence[Waiter[T]]) -> Waiter[T]:
    """Return who leaves of those that wait, in the order of their ranks."""
    number_of = Counter(each.tenant for each in waiters)
    least_urgent = (each for each in waiters if each.priority >= waiters[-1].priority)
    return max(least_urgent, key=lambda each: (number_of[each.tenant], each.rank))
