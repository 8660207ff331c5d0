"""What a request has to meet to be good: "ttft=500ms,tpot=50ms". Pure.

Invariant: a request that failed, or did not end, meets nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pagewire.slo.figures.record import Record

MEASURES = ("ttft", "tpot", "e2e")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m)\s*")


@dataclass(frozen=True, slots=True)
class Objectives:
    """Bounds in seconds by measure; a request is good when it meets all of them. Without any, when it was answered."""

    bounds_s: Mapping[str, float]

    def meets(self, record: Record, measure: str) -> bool:
        """Return whether an answer was as quick as its bound says: one of a single token has no TPOT, and meets any."""
        if not record.is_answered:
            return False
        value = record.value_s(measure)
        return value is None or value <= self.bounds_s[measure]

    def is_good(self, record: Record) -> bool:
        """Return whether a request was answered within every bound."""
        return record.is_answered and all(self.meets(record, measure) for measure in self.bounds_s)

    def __str__(self) -> str:
        """Return the text that `parse_objectives` reads."""
        return ",".join(f"{measure}={bound_s * 1e3:.10g}ms" for measure, bound_s in self.bounds_s.items())


def parse_objectives(text: str) -> Objectives:
    """Return what "ttft=500ms,tpot=50ms,e2e=10s" says, "" for none; raises ValueError, which names what is wrong."""
    bounds_s: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        measure, _, span = part.partition("=")
        measure = measure.strip()
        if measure not in MEASURES:
            raise ValueError(f"{measure!r} is no objective: known are {', '.join(MEASURES)}, as in ttft=500ms")
        if measure in bounds_s:
            raise ValueError(f"{measure} is there twice in {text!r}")
        bounds_s[measure] = parse_seconds(span)
    return Objectives(bounds_s)


def parse_seconds(text: str) -> float:
    """Return the seconds that "500ms", "1.5s" or "2m" are; raises ValueError on anything else."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f'{text!r} is not a span such as "500ms", "1.5s" or "2m"')
    return float(match[1]) * _SECONDS[match[2]]
