"""Counts the requests of a run as they are over: what its summary says, and no record of them. Pure.

A million requests cost about 40 bytes each, and 8 more for each gap between two parts that their records have.
Invariant: in whatever order requests come, the summary is the same.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable

from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.record import MEASURES, NAMES, Record
from pagewire.slo.figures.statistics import distribution_ms
from pagewire.slo.figures.summary import Attainment, Summary, Window


class Tally:
    """Of the requests that were due from `from_s` on and before `until_s`, seconds since the run began; `is_closed`
    where each user asks when its last answer is there.
    """

    def __init__(self, from_s: float, until_s: float, objectives: Objectives, *, is_closed: bool = False) -> None:
        self._from_s = from_s
        self._until_s = until_s
        self._objectives = objectives
        self._is_closed = is_closed
        self._first_s, self._last_s = math.inf, 0.0  # when the first and the last one were due
        self._ended_s = 0.0  # when the last one was over
        self._requests = 0
        self._values = {name: array("d") for name in NAMES}
        self._failures: Counter[str] = Counter()
        self._good: Counter[str] = Counter()
        self._all_good = 0
        self._input_tokens = 0
        self._looked_up_tokens = 0
        self._cached_tokens: int | None = None
        self._output_tokens = 0
        self._short = 0

    def add(self, record: Record) -> None:
        """Count a request, if it was due in time."""
        if not self._from_s <= record.intended_s < self._until_s:
            return
        self._requests += 1
        self._first_s = min(self._first_s, record.intended_s)
        self._last_s = max(self._last_s, record.intended_s)
        self._ended_s = max(self._ended_s, record.sent_s, record.last_s or 0.0, record.ended_s or 0.0)
        for name in MEASURES:
            if (value := record.value_s(name)) is not None:
                self._values[name].append(value)
        self._values["gap"].extend(record.gaps_s)
        if not record.is_answered:
            self._failures[record.error or "no_tokens"] += 1
        self._good.update(name for name in self._objectives.bounds_s if self._objectives.meets(record, name))
        self._all_good += self._objectives.is_good(record)
        self._input_tokens += record.input_tokens
        if record.cached_tokens is not None:
            self._cached_tokens = (self._cached_tokens or 0) + record.cached_tokens
            self._looked_up_tokens += record.input_tokens
        self._output_tokens += record.output_tokens
        self._short += record.is_answered and record.output_tokens < record.wanted_tokens

    def summary(self, *, is_cut: bool = True) -> Summary:
        """Return the figures.

        Where `until_s` cut nothing off the window ends behind the last request that was due; of a closed loop, which
        has them due as it answers, and where all were due at once, when the last one was over. Raises ValueError where
        none came.
        """
        if not self._requests:
            raise ValueError(f"no request was due between {self._from_s:g} s and {self._until_s:g} s of the run")
        until_s = self._until_s
        if not (is_cut and math.isfinite(until_s)):
            is_moment = self._last_s <= self._first_s
            until_s = math.nextafter(self._ended_s if self._is_closed or is_moment else self._last_s, math.inf)
        return Summary(
            window=Window(from_s=self._from_s, until_s=until_s),
            ended_s=max(until_s, self._ended_s),
            objectives=self._objectives,
            requests=self._requests,
            failures=self._failures,
            measures={name: distribution_ms(each) for name, each in self._values.items()},
            attained={
                name: Attainment(good=self._good[name], total=self._requests) for name in self._objectives.bounds_s
            },
            all_attained=Attainment(good=self._all_good, total=self._requests),
            input_tokens=self._input_tokens,
            looked_up_tokens=self._looked_up_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            short=self._short,
        )


def summarize(records: Iterable[Record], window: Window, objectives: Objectives) -> Summary:
    """Return the figures of the requests that were due in `window`; raises ValueError where there were none."""
    tally = Tally(window.from_s, window.until_s, objectives)
    for record in records:
        tally.add(record)
    return tally.summary()
