"""A request's life as stamps of a closed vocabulary.

Every process stamps its own part; stamps of two processes are never subtracted, because their clocks differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """The moments of a request, in the order in which they usually come."""

    # router
    RECEIVED = "received"
    TOKENIZED = "tokenized"
    LOOKED_UP = "looked_up"
    PLACED = "placed"
    SUBMITTED = "submitted"
    FIRST_TOKEN = "first_token"
    LAST_TOKEN = "last_token"
    # decode pod
    ACCEPTED = "accepted"
    RESERVED = "reserved"
    RUN_SENT = "run_sent"
    PREFIX_FETCHED = "prefix_fetched"
    FIRST_CHUNK_READY = "first_chunk_ready"
    FIRST_TOKENS_RECEIVED = "first_tokens_received"
    LAST_BLOCK_VERIFIED = "last_block_verified"
    JOINED = "joined"
    FIRST_STEP = "first_step"
    FINISHED = "finished"
    # prefill pod
    RUN_RECEIVED = "run_received"
    PREFILL_BEGUN = "prefill_begun"
    FIRST_CHUNK_COMPUTED = "first_chunk_computed"
    LAST_CHUNK_COMPUTED = "last_chunk_computed"


@dataclass(frozen=True, slots=True)
class Stamp:
    """One moment: `at_s` is on the monotonic clock of the process that stamped it."""

    phase: Phase
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The stamps of one process for one request."""

    process: str
    stamps: tuple[Stamp, ...] = ()

    def between_s(self, start: Phase, end: Phase) -> float | None:
        """Return seconds from `start` to `end`, or None where either was never stamped."""
        at = {stamp.phase: stamp.at_s for stamp in self.stamps}
        if start not in at or end not in at:
            return None
        return at[end] - at[start]


@dataclass(slots=True)
class Stopwatch:
    """Collects a process's stamps of one request; the first stamp of a phase stands."""

    process: str
    _at_s: dict[Phase, float] = field(default_factory=dict)

    def stamp(self, phase: Phase, now_s: float) -> None:
        """Record that `phase` was reached at `now_s`, unless it was before."""
        self._at_s.setdefault(phase, now_s)

    def timeline(self) -> Timeline:
        """Return what was stamped so far."""
        return Timeline(process=self.process, stamps=tuple(Stamp(phase, at_s) for phase, at_s in self._at_s.items()))
