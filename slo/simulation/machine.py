"""A machine that several pods share: while their steps overlap they take from one another. Pure.

Invariant: a step's pace is at every moment what the law says of the steps that compute beside it.
"""

from __future__ import annotations

from typing import Protocol

from pagewire.slo.costs.cost_model import SharingLaw, StepKind


class Paced(Protocol):
    """An engine on the machine."""

    def change_pace(self, slowdown: float) -> None:
        """What computes takes so many times its work from now on."""
        ...


class Machine:
    """One machine; `law` says who slows whom down."""

    def __init__(self, law: SharingLaw) -> None:
        self._law = law
        self._running: dict[Paced, StepKind] = {}

    def begins(self, engine: Paced, kind: StepKind) -> float:
        """A step of an engine begins, alone or behind another; return how many times its work it takes for now."""
        if self._running.get(engine) is not kind:
            self._running[engine] = kind
            self._tell_others(engine)
        return self._slowdown(engine)

    def rests(self, engine: Paced) -> None:
        """An engine has nothing to do."""
        if self._running.pop(engine, None) is not None:
            self._tell_others(engine)

    def _tell_others(self, engine: Paced) -> None:
        for each in self._running:
            if each is not engine:
                each.change_pace(self._slowdown(each))

    def _slowdown(self, engine: Paced) -> float:
        others = [kind for each, kind in self._running.items() if each is not engine]
        return self._law.slowdown(self._running[engine], others)
