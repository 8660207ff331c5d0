"""The figures of a run: distributions, attainment and goodput of its steady window. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.statistics import CONFIDENCE, Distribution, Interval, wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a run that counts: requests that were due from `from_s` on and before `until_s`, since its start."""

    from_s: float
    until_s: float

    def __post_init__(self) -> None:
        """Refuse an empty window with ValueError."""
        if not 0 <= self.from_s < self.until_s:
            raise ValueError(f"the window from {self.from_s:g} s to {self.until_s:g} s is empty: warm up for less")

    @property
    def length_s(self) -> float:
        """How long it is."""
        return self.until_s - self.from_s

    def holds(self, at_s: float) -> bool:
        """Return whether a moment is in it."""
        return self.from_s <= at_s < self.until_s

    def per_s(self, count: int) -> float | None:
        """Return how many of `count` came a second; None where it holds one moment alone, which has no rate."""
        return None if self.until_s <= math.nextafter(self.from_s, math.inf) else count / self.length_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """How many of all requests met an objective, failed ones among those that did not."""

    good: int
    total: int

    @property
    def share(self) -> float:
        """Their share, 0 to 1."""
        return self.good / self.total

    @property
    def interval(self) -> Interval:
        """Where the share of many more requests would lie, with CONFIDENCE."""
        return wilson(self.good, self.total)

    def as_json(self) -> dict[str, Any]:
        """Return it for a summary."""
        return {**asdict(self), "share": self.share, **asdict(self.interval), "confidence": CONFIDENCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a window came to. `measures` are by name, with the gaps between parts as "gap"; None where there are none.

    `attained` has each objective by its name; `all_attained` is a request's meeting all of them. `ended_s` is when the
    window was over and each of its requests as well, answered or failed. Rates are None where no time passed.
    `looked_up_tokens` are the input tokens of those requests of which the server says how many it had cached
    (`cached_tokens`, None where it does so of none).
    """

    window: Window
    ended_s: float
    objectives: Objectives
    requests: int
    failures: Mapping[str, int]
    measures: Mapping[str, Distribution | None]
    attained: Mapping[str, Attainment]
    all_attained: Attainment
    input_tokens: int
    looked_up_tokens: int
    cached_tokens: int | None
    output_tokens: int
    short: int

    @property
    def answering_s(self) -> float:
        """How long it took to answer: of a server that falls behind more than the window, in which it could not."""
        return self._answering.length_s

    @property
    def offered_per_s(self) -> float | None:
        """Requests that were due, per second."""
        return self.window.per_s(self.requests)

    @property
    def goodput_per_s(self) -> float | None:
        """Requests that met every objective, per second in which they were answered."""
        return self._answering.per_s(self.all_attained.good)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Tokens of the answers to the window's requests, per second in which they were answered."""
        return self._answering.per_s(self.output_tokens)

    @property
    def _answering(self) -> Window:
        return Window(from_s=self.window.from_s, until_s=self.ended_s)

    @property
    def cached_share(self) -> float | None:
        """Share of the prompts' tokens that the server had cached, of those prompts of which it says; None if of none.

        One that was refused has tokens, and nobody looked them up.
        """
        return None if self.cached_tokens is None else self.cached_tokens / max(1, self.looked_up_tokens)

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object; spans in milliseconds, but for the window's seconds."""
        told = {f"{name}_ms": each and asdict(each) for name, each in self.measures.items()}
        return {
            "window": asdict(self.window),
            "ended_s": self.ended_s,
            "slo_ms": {name: 1e3 * bound_s for name, bound_s in self.objectives.bounds_s.items()},
            "requests": self.requests,
            "failed": sum(self.failures.values()),
            "failures": dict(self.failures),
            "short_answers": self.short,
            "offered_per_s": self.offered_per_s,
            "goodput_per_s": self.goodput_per_s,
            "attainment": self.all_attained.as_json(),
            "attainment_by_objective": {name: each.as_json() for name, each in self.attained.items()},
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "cached_share": self.cached_share,
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": self.output_tokens_per_s,
            **told,
        }
