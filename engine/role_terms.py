"""What an engine goes by while its pod has a role, and how a running engine changes from one role to another.

Works on a scheduler that no step is computing for. Invariant: after a change nothing of the role before is left but
what the cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.engine import hold
from pagewire.engine.brownout import Brownout
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import RolePolicy
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step_pace import StepPace


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTerms:
    """One role's. `least_prefill` tokens of prompt go into a step at least, however long it takes."""

    policy: RolePolicy
    limits: Limits
    least_prefill: int


def change(scheduler: Scheduler, terms: RoleTerms, pace: StepPace | None, brownout: Brownout | None) -> None:
    """Cut off what runs and what is held, and go on by `terms`."""
    for request_id in list(scheduler.groups):
        scheduler.remove_request(request_id)
    for hold_id in list(scheduler.holds):
        hold.release(scheduler, hold_id)
    scheduler.refused.clear()
    scheduler.limits, scheduler.policy = terms.limits, terms.policy
    for bound in (pace, brownout):
        if bound is not None:
            bound.least_prefill = terms.least_prefill
