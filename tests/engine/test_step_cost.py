"""The law that step times are fitted with."""

from __future__ import annotations

from pagewire.engine import step_cost
from pagewire.engine.step_cost import StepCost, StepShape


def test_steps_that_took_no_time_are_borne() -> None:
    """A clock may stand still for as long as a step of a tiny model; then nothing is off, and nothing is usual."""
    cost = StepCost()
    for _ in range(step_cost.WARM_UP + 1):
        cost.observe(StepShape(decodes=1), 0.0)
    assert cost.predict_s(StepShape(decodes=1)) == 0.0
    cost.observe(StepShape(decodes=1), 1.0)
    cost.observe(StepShape(decodes=1), 0.0)
    assert cost.predict_s(StepShape(decodes=1)) >= 0.0
