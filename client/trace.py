"""The trace that a call belongs to, if the caller's program traces.

Knows OpenTelemetry's context where somebody else has imported it, and imports nothing itself: the SDK does not need it.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from pagewire.core.errors import InvalidRequest

TRACE_KEY = "traceparent"
# As every version of it begins; what follows is of later ones.
HEADER = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?")


def trace_metadata(traceparent: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that says so: `traceparent` as given, else that of the current span, else none.

    What no tracer writes goes no further, as W3C has it: callers pass on what others sent them. Raises InvalidRequest
    where it is no text.
    """
    header = current_traceparent() if traceparent is None else traceparent
    if not isinstance(header, str):
        raise InvalidRequest(f"traceparent is a text, not {header!r:.80}", field="traceparent")
    return ((TRACE_KEY, header),) if HEADER.fullmatch(header) else ()


def current_traceparent() -> str:
    """Return the current span of OpenTelemetry as W3C's traceparent; "" where there is none."""
    otel: Any = sys.modules.get("opentelemetry.trace")
    if otel is None:
        return ""
    context = otel.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"
