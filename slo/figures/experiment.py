"""An experiment: runs that differ in what their labels say, in what they were asked, or in what they had to meet. Pure.

Labels are free but for four that figures know: "rate" (requests a second that were asked), "prefill" and "decode"
(pods of a disaggregated cluster) and "colocated" (pods of one that is not). Any other tells variants apart. Invariant:
a trial's summary is made of its records, and a series is of one workload and one SLO.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.summary import Summary, Window
from pagewire.slo.figures.tally import summarize

Label = str | int | float
RATE, PREFILL, DECODE, COLOCATED = "rate", "prefill", "decode", "colocated"
LOOP, CLOSED, OPEN = "loop", "closed", "open"  # of what was asked
_PODS = (PREFILL, DECODE, COLOCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run. `records` are all there were; `about` is what is told beside: machine, versions, command, seed.

    `workload` has the settings that make it another workload, not more of the same; empty where nothing is told of it.
    """

    labels: Mapping[str, Label]
    records: tuple[Record, ...]
    summary: Summary
    about: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    workload: Mapping[str, str] = field(default_factory=dict)

    @property
    def counted(self) -> list[Record]:
        """Return the records of the steady window."""
        return [record for record in self.records if self.summary.window.holds(record.intended_s)]

    @property
    def rate_per_s(self) -> float:
        """The rate that was asked, or else that which came; 0 where that is none, for all came at one moment."""
        return float(self.labels.get(RATE, self.summary.offered_per_s or 0.0))

    @property
    def is_closed(self) -> bool:
        """Whether its users waited for their answers: then what came is what was carried, and no rate was asked."""
        return self.workload.get(LOOP) == CLOSED

    @property
    def variant(self) -> tuple[tuple[str, Label], ...]:
        """Every label but the rate: what makes it another system, not another load."""
        return tuple(sorted((name, value) for name, value in self.labels.items() if name != RATE))

    @property
    def asked(self) -> tuple[tuple[str, str], ...]:
        """What it was asked and by what it was judged: what makes it another question."""
        return (*self.workload.items(), ("slo", str(self.summary.objectives) or "none"))


def trial(
    records: Sequence[Record], window: Window, objectives: Objectives, *, labels: Mapping[str, Label],
    about: Mapping[str, Any] | None = None, name: str = "", workload: Mapping[str, str] | None = None,
) -> Trial:  # fmt: skip
    """Return a trial with its figures; raises ValueError where no request was due in the window."""
    summary = summarize(records, window, objectives)
    return Trial(
        labels=labels, records=tuple(records), summary=summary, about=about or {}, name=name, workload=workload or {}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The trials of one variant that were asked the same, the lowest rate first."""

    name: str
    trials: tuple[Trial, ...]

    @property
    def labels(self) -> Mapping[str, Label]:
        """What they have in common, and differs from other series or not."""
        return dict(self.trials[0].variant)

    @property
    def num_pods(self) -> int | None:
        """Pods that served, None where no label says so."""
        told = [int(self.labels[each]) for each in _PODS if each in self.labels]
        return sum(told) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """At least one trial; `about` is what is told of the whole: its command, its seed."""

    title: str
    trials: tuple[Trial, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def series(self) -> list[Series]:
        """Return the trials by variant and by what they were asked, in the order in which these first come."""
        found: dict[tuple[object, ...], list[Trial]] = {}
        for each in self.trials:
            found.setdefault((each.variant, each.asked), []).append(each)
        return [
            Series(name=self._variant_name(trials[0]), trials=tuple(sorted(trials, key=lambda each: each.rate_per_s)))
            for trials in found.values()
        ]

    def rated(self) -> list[Series]:
        """Return the series that were asked at rates: those of no closed loop."""
        return [each for each in self.series() if not each.trials[0].is_closed]

    def questions(self) -> list[Experiment]:
        """Return it once for each question that was asked, with the trials of that one; itself where there is one."""
        found: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
        for each in self.trials:
            found.setdefault(each.asked, []).append(each)
        if len(found) < 2:
            return [self]
        return [dataclasses.replace(self, trials=tuple(trials)) for trials in found.values()]

    def question_of(self, trial: Trial) -> str:
        """Return in what a trial was asked other things than others, "" where all were asked the same."""
        all_asked = [dict(each.asked) for each in self.trials]
        mine = dict(trial.asked)
        told = [asked for asked in all_asked if len(asked) > 1]
        apart = [name for name in mine if len({each.get(name) for each in (all_asked if name == "slo" else told)}) > 1]
        unknown = ["workload not told"] if len(mine) == 1 and told else []
        return ", ".join([*unknown, *(f"{name} {mine[name] or 'none'}" for name in apart)])

    def name_of(self, trial: Trial) -> str:
        """Return what a trial is called: its own name, or else what makes it differ, and which run of those alike."""
        name = self._plain_name(trial)
        alike = [each for each in self.trials if self._plain_name(each) == name]
        if len(alike) < 2:
            return name
        return f"{name}, run {1 + next(place for place, each in enumerate(alike) if each is trial)}"

    def _plain_name(self, trial: Trial) -> str:
        if trial.name:
            return trial.name
        are_many = len({(each.variant, each.asked) for each in self.trials}) > 1
        variant = self._variant_name(trial) if are_many else ""
        rate = f"{trial.rate_per_s:g}/s"
        return f"{variant}, {rate}" if variant else rate

    def _variant_name(self, trial: Trial) -> str:
        others = [f"{name} {value}" for name, value in trial.variant if name not in _PODS and self._differs(name)]
        system = ", ".join([*filter(None, (pods_name(trial.labels),)), *others]) or trial.name
        return ", ".join(filter(None, (system, self.question_of(trial)))) or "all runs"

    def _differs(self, label: str) -> bool:
        return len({each.labels.get(label) for each in self.trials}) > 1


def pods_name(labels: Mapping[str, Label]) -> str:
    """Return "1P:2D", "2 colocated", or "" where no label says what served."""
    if PREFILL in labels and DECODE in labels:
        return f"{labels[PREFILL]}P:{labels[DECODE]}D"
    return f"{labels[COLOCATED]} colocated" if COLOCATED in labels else ""
