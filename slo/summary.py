"""The figures of a run, from its records: distributions, attainment and goodput of its steady window. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pagewire.slo.objectives import Objectives
from pagewire.slo.record import Record
from pagewire.slo.statistics import CONFIDENCE, Distribution, Interval, distribution_ms, wilson

MEASURES = ("ttft", "tpot", "e2e", "late")


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

    `attained` has each objective by its name; `all_attained` is a request's meeting all of them.
    """

    window: Window
    objectives: Objectives
    requests: int
    failures: Mapping[str, int]
    measures: Mapping[str, Distribution | None]
    attained: Mapping[str, Attainment]
    all_attained: Attainment
    input_tokens: int
    cached_tokens: int | None
    output_tokens: int
    short: int

    @property
    def offered_per_s(self) -> float:
        """Requests that were due, per second."""
        return self.requests / self.window.length_s

    @property
    def goodput_per_s(self) -> float:
        """Requests that met every objective, per second."""
        return self.all_attained.good / self.window.length_s

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens of the answers to the window's requests, per second of it."""
        return self.output_tokens / self.window.length_s

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object; spans in milliseconds, but for the window's seconds."""
        told = {f"{name}_ms": each and asdict(each) for name, each in self.measures.items()}
        return {
            "window": asdict(self.window),
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
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": self.output_tokens_per_s,
            **told,
        }


def summarize(records: Iterable[Record], window: Window, objectives: Objectives) -> Summary:
    """Return the figures of the requests that were due in `window`; raises ValueError where there were none."""
    counted = [record for record in records if window.holds(record.intended_s)]
    if not counted:
        raise ValueError(f"no request was due between {window.from_s:g} s and {window.until_s:g} s of the run")
    values = {name: [value for each in counted if (value := each.value_s(name)) is not None] for name in MEASURES}
    gaps = [gap for each in counted for gap in each.gaps_s]
    cached = [each.cached_tokens for each in counted if each.cached_tokens is not None]
    return Summary(
        window=window,
        objectives=objectives,
        requests=len(counted),
        failures=Counter(each.error or "no_tokens" for each in counted if not each.is_answered),
        measures={name: distribution_ms(each) for name, each in {**values, "gap": gaps}.items()},
        attained={
            name: Attainment(good=sum(objectives.meets(each, name) for each in counted), total=len(counted))
            for name in objectives.bounds_s
        },
        all_attained=Attainment(good=sum(map(objectives.is_good, counted)), total=len(counted)),
        input_tokens=sum(each.input_tokens for each in counted),
        cached_tokens=sum(cached) if cached else None,
        output_tokens=sum(each.output_tokens for each in counted),
        short=sum(each.is_answered and each.output_tokens < each.wanted_tokens for each in counted),
    )
