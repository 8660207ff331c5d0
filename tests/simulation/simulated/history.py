"""What happened in a world, in its order: one line an event, so that two runs can be compared and one can be checked.

Knows no meaning. Invariant: an event says all that the checker needs of it, and nothing that a replay would say
otherwise.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a true time, in seconds, to somebody."""

    at_s: float
    kind: str
    who: str
    what: dict[str, Any]

    def __str__(self) -> str:
        said = " ".join(f"{name}={value}" for name, value in self.what.items())
        return f"{self.at_s:10.6f} {self.kind:<12} {self.who:<12} {said}"


@dataclass(slots=True)
class History:
    """All events of one world."""

    events: list[Event] = field(default_factory=list)

    def note(self, at_s: float, kind: str, who: str, **what: Any) -> None:
        """Something happened."""
        self.events.append(Event(at_s, kind, who, what))

    def of(self, kind: str) -> list[Event]:
        """Return the events of a kind."""
        return [event for event in self.events if event.kind == kind]

    def digest(self) -> str:
        """Return a hash of it: that of a replay is the same."""
        state = hashlib.blake2b(digest_size=8)
        for event in self.events:
            state.update(str(event).encode())
        return state.hexdigest()

    def __str__(self) -> str:
        return "\n".join(map(str, self.events))
