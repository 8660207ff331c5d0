"""Where a span belongs: the trace, the span above it, and whether anybody wants to see it; W3C's `traceparent`.

Values and their text. What comes from outside is read strictly: what is not a header by the letter of the
specification is none. The decision to trace is a function of the trace's id alone, so that processes that are asked
apart decide alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HEADER_CHARS = 512  # of a version that we do not know and that has more in it
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_RATIO_BITS = 64  # of the id, the lowest, by which OpenTelemetry's ratio sampler decides too


@dataclass(frozen=True, slots=True)
class TraceContext:
    """`trace_id` (32 hex digits) and `span_id` (16) of a span that others are below; "" where there is no span yet."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @classmethod
    def parse(cls, header: str) -> TraceContext | None:
        """Return what a `traceparent` header says, None where it is none."""
        if len(header) > MAX_HEADER_CHARS or not (found := _HEADER.fullmatch(header)):
            return None
        version, trace_id, span_id, flags, more = found.groups()
        is_known = version == "00"
        if version == "ff" or (is_known and more is not None) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    def below(self, span_id: str) -> TraceContext:
        """Return the context of what is below the span `span_id` of the same trace."""
        return TraceContext(self.trace_id, span_id, self.is_sampled)

    @property
    def header(self) -> str:
        """The `traceparent` that says this."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def is_in_ratio(trace_id: str, ratio: float) -> bool:
    """Say whether a trace is among the share `ratio` (0 to 1) of all that are wanted."""
    return int(trace_id, 16) % (1 << _RATIO_BITS) < round(ratio * (1 << _RATIO_BITS))
