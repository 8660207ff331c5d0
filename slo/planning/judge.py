"""What a candidate comes to in the simulator, and whether it keeps its promises.

Invariant: one judge, one workload and one seed: candidates are compared on the same requests, and each is simulated
once. A run ends early where so many requests were bad that the target is out of reach: that changes no verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.summary import Attainment, Summary, Window
from pagewire.slo.figures.tally import summarize
from pagewire.slo.planning.candidate import Candidate
from pagewire.slo.simulation.request import SimRequest
from pagewire.slo.simulation.simulator import Simulator
from pagewire.slo.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a candidate came to; of a run that ended early, `attained` is the most that it could have come to."""

    candidate: Candidate
    attained: Attainment
    is_met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A run to its end: its figures, its records, and the requests with their moments."""

    candidate: Candidate
    summary: Summary
    records: tuple[Record, ...]
    requests: tuple[SimRequest, ...]


class Judge:
    """Of one workload; requests due in `window` count, and a share of `target` of them has to be good."""

    def __init__(self, workload: Workload, window: Window, objectives: Objectives, target: float, seed: int) -> None:
        if not 0 < target < 1:
            raise ValueError(f"an attainment lies between 0 and 1: {target:g}")
        self.workload = workload
        self.window = window
        self.objectives = objectives
        self.target = target
        self._seed = seed
        self._most = sum(len(arrival.turns) for arrival in workload if window.holds(arrival.at_s) or arrival.turns[1:])
        if not self._most:
            raise ValueError("no request is due in the window")
        self._outcomes: dict[Candidate, Outcome] = {}
        self._wholes: dict[Candidate, Whole] = {}

    @property
    def outcomes(self) -> list[Outcome]:
        """All so far, in the order in which they were asked for."""
        return [*self._outcomes.values()]

    def outcome(self, candidate: Candidate) -> Outcome:
        """Return what a candidate comes to."""
        if candidate not in self._outcomes:
            self._outcomes[candidate] = self._judge(candidate)
        return self._outcomes[candidate]

    def whole(self, candidate: Candidate) -> Whole:
        """Return the same with all that is to be known of it."""
        if candidate not in self._wholes:
            records, requests = list[Record](), list[SimRequest]()
            self._simulator(candidate).play(records.append, requests.append)
            summary = summarize(records, self.window, self.objectives)
            self._wholes[candidate] = Whole(
                candidate=candidate, summary=summary, records=(*records,), requests=(*requests,)
            )
        return self._wholes[candidate]

    def _simulator(self, candidate: Candidate) -> Simulator:
        family = candidate.family
        composition = family.composition(candidate.prefill, candidate.decode)
        return Simulator(composition, family.costs, self.workload, self._seed, is_detailed=False)

    def _judge(self, candidate: Candidate) -> Outcome:
        good = bad = 0
        most_bad = math.floor(self._most * (1 - self.target) + 1e-9)

        def on_record(record: Record) -> None:
            nonlocal good, bad
            if not self.window.holds(record.intended_s):
                return
            if self.objectives.is_good(record):
                good += 1
                return
            bad += 1
            if bad > most_bad:
                raise _OutOfReachError

        try:
            self._simulator(candidate).play(on_record)
        except _OutOfReachError:
            return Outcome(
                candidate=candidate, attained=Attainment(good=self._most - bad, total=self._most), is_met=False
            )
        if not good + bad:  # of sessions whose turns came before the window, or ended with one that failed
            raise ValueError("no request is due in the window")
        attained = Attainment(good=good, total=good + bad)
        return Outcome(candidate=candidate, attained=attained, is_met=attained.share >= self.target)


class _OutOfReachError(Exception):
    """Too many requests were bad."""
