"""A machine that pods share: who is told when of which pace, by an engine that only writes it down."""

from __future__ import annotations

from pagewire.slo.costs.cost_model import SharingLaw, StepKind
from pagewire.slo.simulation.machine import Machine

LAW = SharingLaw(
    prefill_beside_prefill=1.5, prefill_beside_decode=1.25, decode_beside_prefill=2.0, decode_beside_decode=1.125
)
PREFILL, DECODE = StepKind.PREFILL, StepKind.DECODE


class Engine:
    """What it was told, in its order."""

    def __init__(self) -> None:
        self.paces: list[float] = []

    def change_pace(self, slowdown: float) -> None:
        self.paces.append(slowdown)


def test_who_begins_hears_its_pace_and_the_others_hear_of_it() -> None:
    machine, one, other, third = Machine(LAW), Engine(), Engine(), Engine()
    assert machine.begins(one, PREFILL) == 1.0
    assert machine.begins(other, DECODE) == 2.0
    assert machine.begins(third, DECODE) == 2.0 + 0.125
    assert (one.paces, other.paces, third.paces) == ([1.25, 1.5], [2.125], [])


def test_a_step_behind_another_of_its_kind_changes_nothing_for_the_others() -> None:
    machine, one, other = Machine(LAW), Engine(), Engine()
    machine.begins(one, DECODE)
    machine.begins(other, DECODE)
    assert machine.begins(other, DECODE) == 1.125
    assert one.paces == [1.125]
    assert machine.begins(other, PREFILL) == 1.25
    assert one.paces == [1.125, 2.0]


def test_who_rests_slows_nobody_down() -> None:
    machine, one, other = Machine(LAW), Engine(), Engine()
    machine.begins(one, PREFILL)
    machine.begins(other, PREFILL)
    machine.rests(one)
    assert (one.paces, other.paces) == ([1.5], [1.0])
    machine.rests(one)  # it had nothing to do before
    assert other.paces == [1.0]
    assert machine.begins(one, DECODE) == 2.0
