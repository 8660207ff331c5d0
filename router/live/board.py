"""The requests that a router works on, and the last ones that are over: what the live page may tell of them.

Holds numbers, names and stamps, never a text or a token. Invariant: a request that entered is on the board once, among
those that run until it leaves, and no more than `MAX_PAST` of those that left are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pagewire.core.report import Report
from pagewire.core.timeline import Stopwatch, Timeline
from pagewire.router.ask import Ask
from pagewire.router.events import Finished
from pagewire.router.life import Life

MAX_PAST = 256


@dataclass(slots=True, eq=False)
class Entry:
    """One request that runs; `life` is there once it was taken in."""

    request_id: str
    tenant: str
    model: str
    watch: Stopwatch
    life: Life | None = None
    finished: Finished | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One request that is over. `outcome` is its finish reason, or the cause of what ended it; `longest` counts the
    tokens of its longest answer."""

    request_id: str
    tenant: str
    model: str
    outcome: str
    failed: bool
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    longest: int
    attempts: int
    timelines: tuple[Timeline, ...]
    report: Report | None


class Board:
    """One router's."""

    def __init__(self) -> None:
        self._running: dict[Entry, None] = {}  # in the order in which they came
        self._past: deque[Past] = deque(maxlen=MAX_PAST)

    def enter(self, ask: Ask, model: str, watch: Stopwatch) -> Entry:
        """Put a request on the board; it is given back to `leave`."""
        entry = Entry(ask.request_id, ask.tenant.name, model, watch)
        self._running[entry] = None
        return entry

    def leave(self, entry: Entry, cause: str) -> None:
        """The request is over, `cause` says of what, "" for a finish; one that was never taken in is forgotten."""
        del self._running[entry]
        if entry.life is not None:
            self._past.append(_past(entry, entry.life, cause))

    def running(self, tenant: str | None) -> Iterator[Entry]:
        """Yield the requests of a tenant that run, of all for None, the newest first."""
        return (each for each in reversed(self._running) if tenant in (None, each.tenant))

    def past(self, tenant: str | None) -> Iterator[Past]:
        """Yield those that are over, likewise."""
        return (each for each in reversed(self._past) if tenant in (None, each.tenant))


def _past(entry: Entry, life: Life, cause: str) -> Past:
    finished = entry.finished if not cause else None
    return Past(
        request_id=entry.request_id,
        tenant=entry.tenant,
        model=entry.model,
        outcome=cause or (finished.endings[0].word.value if finished is not None else ""),
        failed=bool(cause),
        prompt_tokens=len(life.request.prompt),
        cached_tokens=finished.usage.cached_tokens if finished is not None else 0,
        output_tokens=life.num_output,
        longest=max((len(each.output) for each in life.sequences), default=0),
        attempts=life.attempt,
        timelines=finished.timelines if finished is not None else (entry.watch.timeline(),),
        report=finished.report if finished is not None else None,
    )
