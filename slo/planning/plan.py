"""A plan: the cheapest cluster, the best of either way to serve, where their budgets go, and what if things change.

Knows no file and no terminal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagewire.slo.costs.roofline import ModelShape
from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.summary import Attainment, Window
from pagewire.slo.planning.candidate import Candidate, Choices, Family, families
from pagewire.slo.planning.demand import Demand
from pagewire.slo.planning.device_kind import DeviceKind
from pagewire.slo.planning.judge import Judge, Outcome
from pagewire.slo.planning.search import cheapest
from pagewire.slo.planning.spending import Spending, spending
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.transforms import faster
from pagewire.slo.workloads.workload import Workload

FASTER = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be planned for. Requests due in `window` count, a share of `target` of them has to be good."""

    model: ModelShape
    kinds: tuple[DeviceKind, ...]
    workload: Workload
    window: Window
    objectives: Objectives
    target: float
    choices: Choices
    seed: int = 0

    def num_requests(self) -> int:
        """Return how many requests there are, those that do not count among them."""
        return sum(len(arrival.turns) for arrival in self.workload)

    def num_too_long(self) -> int:
        """Return how many of them have more tokens, the answer's included, than the model has positions."""
        longest = self.model.max_positions or math.inf
        return sum(
            arrival.prompt_tokens(place) + turn.output_tokens > longest
            for arrival in self.workload
            for place, turn in enumerate(arrival.turns)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The best of the colocated clusters, or of those apart; `least` pods are too few in any case.

    `outcome` is None where none keeps its promises with as many pods as are allowed.
    """

    name: str
    outcome: Outcome | None
    spending: Spending | None
    least: int

    @property
    def price(self) -> float | None:
        """What it costs an hour."""
        return None if self.outcome is None else self.outcome.candidate.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The other way at the price of the one that was chosen, or below: the one of those tried that kept most."""

    candidate: Candidate
    attained: Attainment
    spending: Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What if something changes: what the chosen cluster comes to then, and which would be the cheapest."""

    name: str
    attained: Attainment
    is_met: bool
    best: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to a question; `runs` were simulated for it, those of `what_ifs` included."""

    question: Question
    colocated: Side
    apart: Side
    rival: Rival | None
    what_ifs: tuple[WhatIf, ...]
    runs: int

    @property
    def chosen(self) -> Side | None:
        """The cheaper side, colocated where both cost the same: it is simpler. None where neither will do."""
        sides = [each for each in (self.colocated, self.apart) if each.outcome is not None]
        return min(sides, key=lambda side: side.price or 0.0, default=None)

    @property
    def other(self) -> Side | None:
        """The side that was not chosen."""
        chosen = self.chosen
        return None if chosen is None else self.apart if chosen is self.colocated else self.colocated


def plan(question: Question, *, with_what_ifs: bool = True) -> Plan:
    """Return the plan; raises ValueError where the model fits into no kind, or no request counts."""
    judge = _judge(question)
    demand = _demand(question)
    colocated, apart = _sides(question)
    sides = (
        _side("colocated", colocated, demand, judge, question.choices.max_pods),
        _side("apart", apart, demand, judge, question.choices.max_pods),
    )
    bare = Plan(question=question, colocated=sides[0], apart=sides[1], rival=None, what_ifs=(), runs=0)
    rival = _rival(bare, judge)
    what_ifs, runs = [], len(judge.outcomes)
    if with_what_ifs and bare.chosen is not None and bare.chosen.outcome is not None:
        for name, changed in _changes(question):
            found, more = _what_if(name, changed, bare.chosen.outcome.candidate)
            what_ifs.append(found)
            runs += more
    return dataclasses.replace(bare, rival=rival, what_ifs=tuple(what_ifs), runs=runs)


def _judge(question: Question) -> Judge:
    return Judge(question.workload, question.window, question.objectives, question.target, question.seed)


def _demand(question: Question) -> Demand:
    return Demand.of(
        question.workload, question.window, question.objectives, question.target,
        question.model.max_positions or math.inf,
    )  # fmt: skip


def _sides(question: Question) -> tuple[list[Family], list[Family]]:
    found = families(question.model, question.kinds, question.choices)
    return [each for each in found if each.is_colocated], [each for each in found if not each.is_colocated]


def _side(name: str, of: Sequence[Family], demand: Demand, judge: Judge, max_pods: int) -> Side:
    outcome = cheapest(of, demand, judge, max_pods=max_pods)
    spent = None if outcome is None else spending(judge.whole(outcome.candidate), judge.target)
    return Side(name=name, outcome=outcome, spending=spent, least=min(sum(demand.least(each)) for each in of))


def _rival(found: Plan, judge: Judge) -> Rival | None:
    chosen, other = found.chosen, found.other
    if chosen is None or other is None or chosen.price is None:
        return None
    tried = [
        each
        for each in judge.outcomes
        if each.candidate.family.is_colocated == (other is found.colocated) and each.candidate.price <= chosen.price
    ]
    if not tried:
        return None
    dearest = max(each.candidate.price for each in tried)
    wholes = [judge.whole(each.candidate) for each in tried if each.candidate.price == dearest]
    best = max(wholes, key=lambda each: each.summary.all_attained.share)
    spent = spending(best, judge.target)
    return Rival(candidate=best.candidate, attained=best.summary.all_attained, spending=spent)


def _changes(question: Question) -> Iterator[tuple[str, Question]]:
    slower = tuple(dataclasses.replace(each, link=each.link / 2) for each in question.kinds)
    yield "links half as fast", dataclasses.replace(question, kinds=slower)
    yield "prompts twice as long", dataclasses.replace(question, workload=longer_prompts(question.workload))
    workload, window = faster(question.workload, FASTER), question.window
    until_s = math.nextafter(window.until_s / FASTER, math.inf)  # or rounding leaves the last request out
    sooner = Window(from_s=window.from_s / FASTER, until_s=until_s)
    yield "half as many requests again", dataclasses.replace(question, workload=workload, window=sooner)


def _what_if(name: str, changed: Question, chosen: Candidate) -> tuple[WhatIf, int]:
    judge = _judge(changed)
    demand = _demand(changed)
    of = [each for side in _sides(changed) for each in side]
    same = next(each for each in of if each.choice == chosen.family.choice)
    kept = judge.outcome(Candidate(family=same, prefill=chosen.prefill, decode=chosen.decode))
    best = cheapest(of, demand, judge, max_pods=changed.choices.max_pods)
    return WhatIf(name=name, attained=kept.attained, is_met=kept.is_met, best=best), len(judge.outcomes)


def longer_prompts(workload: Workload) -> Workload:
    """Return the same requests with prompts twice as long, answers as they were; what is shared stays so.

    For the simulator alone, which reads no texts.
    """

    def turn(old: Turn) -> Turn:
        return dataclasses.replace(old, input_tokens=2 * old.input_tokens)

    def source() -> Iterator[Arrival]:
        for arrival in workload:
            yield dataclasses.replace(arrival, turns=tuple(map(turn, arrival.turns)))

    return dataclasses.replace(workload, source=source, piece_tokens=2 * workload.piece_tokens)
