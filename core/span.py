"""A part of a request's life as a trace shows it: named, from one moment to another, with parts of its own.

Plain values of one process, made when a request is over from what was stamped on its way; moments are on that process's
monotonic clock. Knows nothing of traces' ids but those that another process was told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pagewire.core.timeline import Phase, Timeline

Attribute = str | bool | int | float | tuple[str, ...]


class SpanKind(StrEnum):
    """Which side of a call a span is, as OpenTelemetry has it."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment within a span."""

    name: str
    at_s: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One part. `span_id` is drawn when it is shown, unless another process has parts below it. `error` is a cause."""

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    parts: tuple[Span, ...] = ()
    kind: SpanKind = SpanKind.INTERNAL
    span_id: str = ""
    error: str = ""

    def __len__(self) -> int:
        return 1 + sum(len(part) for part in self.parts)


def between(name: str, timeline: Timeline, start: Phase, end: Phase) -> Iterator[Span]:
    """Yield the span between two stamps; nothing where either was never made."""
    at_s = {stamp.phase: stamp.at_s for stamp in timeline.stamps}
    if start in at_s and end in at_s:
        yield Span(name=name, start_s=at_s[start], end_s=at_s[end])


def mark(name: str, timeline: Timeline, phase: Phase) -> Iterator[Mark]:
    """Yield the moment of a stamp; nothing where it was never made."""
    for stamp in timeline.stamps:
        if stamp.phase is phase:
            yield Mark(name=name, at_s=stamp.at_s)
