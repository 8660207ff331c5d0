"""One pod's circuit breaker, from the results of the attempts on it.

    closed     all may go there; `failures` failures in a row, or `trip` -> open
    open       nobody should, for `open_s` times the number of times in a row, at most `MAX_OPEN_S` -> half open
    half open  `PROBES` attempts at a time; one fails -> open; `PROBES` succeed -> closed

Pure: time is a parameter. Knows results, nothing of pods. An attempt counts in the state in which it began: what began
earlier says nothing of now. Invariant: in half open never more than `PROBES` attempts run that were let in as such.
"""

from __future__ import annotations

from enum import StrEnum

MAX_OPEN_S = 300.0
PROBES = 2


class State(StrEnum):
    """The states of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts failures in a row, and keeps attempts away for a while when they are too many."""

    def __init__(self, *, failures: int, open_s: float) -> None:
        self._max_failures = failures
        self._open_s = open_s
        self._turn = 0  # changes with the state
        self._times = 0  # that it opened, in a row
        self.until_s = 0.0  # when it half-opens, or since when it has been closed
        self._enter(State.CLOSED)

    def _enter(self, state: State) -> None:
        self._state = state
        self._turn += 1
        self._failures = 0  # in a row
        self._probes = 0  # that run
        self._successes = 0  # of probes

    def state(self, now_s: float) -> State:
        """Return the state it is in now."""
        if self._state is State.OPEN and now_s >= self.until_s:
            self._enter(State.HALF_OPEN)
        return self._state

    def takes(self, now_s: float) -> bool:
        """True when an attempt may begin."""
        state = self.state(now_s)
        return state is State.CLOSED or (state is State.HALF_OPEN and self._probes < PROBES)

    def begin(self, now_s: float) -> int:
        """An attempt begins, whether it should or not; return what `end` has to be told."""
        if self.state(now_s) is State.HALF_OPEN:
            if self._probes >= PROBES:
                return -1
            self._probes += 1
        return self._turn

    def end(self, turn: int, is_good: bool | None, now_s: float) -> bool:
        """An attempt ended well, badly, or in a way that says nothing; return whether the breaker opened over it."""
        state = self.state(now_s)
        if turn != self._turn:
            return False
        if state is State.HALF_OPEN:
            self._probes -= 1
        if is_good:
            self._failures = 0
            self._successes += state is State.HALF_OPEN
            if self._successes >= PROBES:
                self.until_s = now_s
                self._enter(State.CLOSED)
        elif is_good is False and state is not State.OPEN:
            self._failures += 1
            if state is State.HALF_OPEN or self._failures >= self._max_failures:
                self.trip(now_s)
                return True
        return False

    def trip(self, now_s: float) -> None:
        """Open now; longer than the last time, unless it has been closed for a good while since."""
        if self._state is State.CLOSED and now_s - self.until_s >= MAX_OPEN_S:
            self._times = 0
        self._times += 1
        self.until_s = now_s + min(MAX_OPEN_S, self._open_s * self._times)
        self._enter(State.OPEN)
