"""Makes a plan that breaks a rule as small as it goes: leaves out and takes away, as long as the rule stays broken.

Knows plans. Invariant: what is returned breaks the rule, and with one thing less, of those tried here, it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from simulated.engine import EnginePlan
from simulated.plan import RETRY_BURST, RETRY_RATIO, FaultPlan, Plan, RequestPlan

Breaks = Callable[[Plan], bool]


def shrink(plan: Plan, breaks: Breaks, most_plays: int = 400) -> Plan:
    """Return a smaller plan that `breaks` too; the same where nothing can be left out."""
    plays = 0
    has_shrunk = True
    while has_shrunk:
        has_shrunk = False
        for smaller in _smaller(plan):
            if plays >= most_plays:
                return plan
            plays += 1
            if breaks(smaller):
                plan, has_shrunk = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield what is a step smaller, the largest steps first."""
    for half in _halves(plan.requests):
        yield replace(plan, requests=half)
    for at in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:at] + plan.faults[at + 1 :])
    for at in range(len(plan.requests)):
        yield replace(plan, requests=plan.requests[:at] + plan.requests[at + 1 :])
    if plan.num_routers > 1:
        yield replace(plan, num_routers=1)
    if plan.num_prefill > 1:
        yield replace(plan, num_prefill=1)
    if plan.num_decode > 1:
        yield replace(plan, num_decode=plan.num_decode - 1)
    if len(plan.clock_rates) > 1:
        yield replace(plan, clock_rates=(1.0,))
    if len(plan.wall_s) > 1:
        yield replace(plan, wall_s=(0.0,))
    if plan.retry_burst != RETRY_BURST:
        yield replace(plan, retry_burst=RETRY_BURST, retry_ratio=RETRY_RATIO)
    if plan.engine != EnginePlan():
        yield replace(plan, engine=EnginePlan())
    for at, request in enumerate(plan.requests):
        for less in _less(request):
            yield replace(plan, requests=(*plan.requests[:at], less, *plan.requests[at + 1 :]))
    for at, fault in enumerate(plan.faults):
        for short in _shorter(fault):
            yield replace(plan, faults=(*plan.faults[:at], short, *plan.faults[at + 1 :]))


def _halves(requests: tuple[RequestPlan, ...]) -> Iterator[tuple[RequestPlan, ...]]:
    if len(requests) > 2:
        middle = len(requests) // 2
        yield requests[:middle]
        yield requests[middle:]


def _less(request: RequestPlan) -> Iterator[RequestPlan]:
    if request.n > 1:
        yield replace(request, n=1)
    if request.max_tokens > 1:
        yield replace(request, max_tokens=request.max_tokens // 2)
    if request.num_shared:
        yield replace(request, num_shared=0)
    if request.num_own > 1:
        yield replace(request, num_own=request.num_own // 2)
    for name, plain in (
        ("stop_token_ids", ()),
        ("salt", ""),
        ("leaves_s", None),
        ("reads_s", 0.0),
        ("is_greedy", True),
    ):
        if getattr(request, name) != plain:
            change: dict[str, Any] = {name: plain}
            yield replace(request, **change)


def _shorter(fault: FaultPlan) -> Iterator[FaultPlan]:
    if fault.lasts_s > 0.1:
        yield replace(fault, lasts_s=fault.lasts_s / 4)
