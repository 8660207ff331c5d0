"""A plan as people read it, and as JSON: a table, where the budgets go, why, and what if."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pagewire.slo.figures.record import NAMES
from pagewire.slo.figures.table import aligned
from pagewire.slo.planning.plan import Plan, Side
from pagewire.slo.planning.spending import Spending


def lines(plan: Plan) -> Iterator[str]:
    """Yield the lines of a plan."""
    yield from aligned([("", "cluster", "an hour", "good", "95 % sure"), *map(_row, (plan.colocated, plan.apart))])
    yield ""
    yield why(plan)
    if too_long := plan.question.num_too_long():
        model, num_requests = plan.question.model, plan.question.num_requests()
        yield (
            f"{too_long} of {num_requests} requests are longer than the {model.max_positions} positions of "
            f"{model.name}: every cluster refuses them."
        )
    for side in (plan.colocated, plan.apart):
        if side.outcome is not None and side.spending is not None:
            yield ""
            yield f"{side.name}, {side.outcome.candidate}"
            yield from _spent(side.spending, plan.question.target)
    if plan.what_ifs:
        yield ""
        rows = [("what if", "the chosen one", "good", "then the cheapest", "an hour")]
        for each in plan.what_ifs:
            best = ("none", "") if each.best is None else (str(each.best.candidate), f"{each.best.candidate.price:.2f}")
            share = f"{each.attained.share:.1%}" if each.is_met else f"at most {each.attained.share:.1%}"
            rows.append((each.name, "will do" if each.is_met else "will not do", share, *best))
        yield from aligned(rows)


def why(plan: Plan) -> str:
    """Return why the chosen cluster is the cheapest, in a plain sentence or three."""
    chosen, other = plan.chosen, plan.other
    if chosen is None or other is None or chosen.outcome is None:
        pods = plan.question.choices.max_pods
        least = min(plan.colocated.least, plan.apart.least)
        bound = f": arithmetic alone asks for {least}" if least > pods else ""
        return f"No cluster of {pods} pods or fewer keeps {_promise(plan)}{bound}."
    told = f"{chosen.outcome.candidate} keeps {_promise(plan)} for {chosen.price:.2f} an hour. "
    if other.price is None:
        told += f"No {_sort(other)} cluster of {plan.question.choices.max_pods} pods or fewer does. "
    elif other.price == chosen.price:
        told += f"A {_sort(other)} cluster costs the same, and is more to run. "
    else:
        told += f"The cheapest {_sort(other)} one costs {other.price:.2f}. "
    return (told + _reason(plan, other)).strip()


def _reason(plan: Plan, other: Side) -> str:
    rival = plan.rival
    if rival is None:
        return f"By arithmetic alone a {_sort(other)} one has {other.least} pods at least, which is dearer."
    name = rival.spending.missed(plan.question.target)
    if name is None:
        together = "" if rival.attained.share >= plan.question.target else ", though not both in one request"
        return f"{rival.candidate}, for {rival.candidate.price:.2f}, meets each objective{together}."
    measure = rival.spending.measures[name]
    bound_ms = 1e3 * (measure.bound_s or 0.0)
    return (
        f"For {rival.candidate.price:.2f}, {rival.candidate} meets {NAMES[name]} <= {bound_ms:g} ms in "
        f"{measure.attained:.0%} of requests: of a mean of {1e3 * measure.mean_s:.1f} ms "
        f'"{measure.largest}" takes {1e3 * measure.parts_s[measure.largest]:.1f} ms.'
    )


def _promise(plan: Plan) -> str:
    return f"{plan.question.objectives or 'an answer'} for {plan.question.target:.10g} of requests"


def _sort(side: Side) -> str:
    return "colocated" if side.name == "colocated" else "disaggregated"


def _row(side: Side) -> tuple[str, ...]:
    if side.outcome is None:
        return side.name, "none", "", "", ""
    attained, candidate = side.outcome.attained, side.outcome.candidate
    return side.name, str(candidate), f"{candidate.price:.2f}", f"{attained.share:.1%}", str(attained.interval)


def _spent(spent: Spending, target: float) -> Iterator[str]:
    for name, measure in spent.measures.items():
        bound = f" of {1e3 * measure.bound_s:g} ms" if measure.bound_s else ""
        yield (
            f"  {NAMES[name]}{bound}: mean {1e3 * measure.mean_s:.1f} ms, p{100 * target:g} "
            f"{1e3 * measure.at_target_s:.1f} ms, met by {measure.attained:.1%}"
        )
        parts = [
            (part, f"{1e3 * each:.1f} ms", f"{each / measure.mean_s:.0%}") for part, each in measure.parts_s.items()
        ]
        yield from (f"    {line}" for line in aligned(parts))


def as_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object."""
    chosen = plan.chosen
    return {
        "model": dataclasses.asdict(plan.question.model),
        "kinds": [dataclasses.asdict(each) for each in plan.question.kinds],
        "choices": dataclasses.asdict(plan.question.choices),
        "slo": str(plan.question.objectives),
        "attainment": plan.question.target,
        "seed": plan.question.seed,
        "requests_too_long": plan.question.num_too_long(),
        "chosen": chosen and chosen.name,
        "why": why(plan),
        "colocated": _side(plan.colocated),
        "apart": _side(plan.apart),
        "rival": plan.rival
        and {
            **plan.rival.candidate.as_json(),
            "attained": plan.rival.attained.as_json(),
            "spending": _spending(plan.rival.spending),
        },
        "what_if": [
            {
                "what": each.name,
                "is_met": each.is_met,
                "attained_at_most": each.attained.share,
                "cheapest": each.best and each.best.candidate.as_json(),
            }
            for each in plan.what_ifs
        ],
        "simulated_runs": plan.runs,
    }


def _side(side: Side) -> dict[str, Any]:
    told: dict[str, Any] = {"least_pods": side.least}
    if side.outcome is not None and side.spending is not None:
        told |= side.outcome.candidate.as_json()
        told |= {"attained": side.outcome.attained.as_json(), "spending": _spending(side.spending)}
    return told


def _spending(spent: Spending) -> dict[str, Any]:
    return {name: measure.as_json() for name, measure in spent.measures.items()}
