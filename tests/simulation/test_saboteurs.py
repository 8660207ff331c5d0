"""Faults that other servers had, planted in the product: the simulation finds each, within so many seeds.

By the rule that it breaks: that something is wrong in a world with a fault could as well be something else.
"""

from __future__ import annotations

import os

import pytest
from simulated.checker import BROKEN, RULES
from simulated.runner import outcomes
from simulated.saboteurs import SABOTEURS, Saboteur


@pytest.mark.parametrize("saboteur", SABOTEURS, ids=lambda saboteur: saboteur.name)
def test_a_planted_fault_is_found(saboteur: Saboteur) -> None:
    planted = saboteur.plant()  # kept, for as long as the process lives: what is collected is taken out again

    def plant() -> None:
        planted.__enter__()

    played = outcomes(range(saboteur.within), processes=os.cpu_count() or 1, prepare=plant)
    found: set[str] = set()
    for outcome in played:
        said = [str(violation) for violation in outcome.violations]
        found |= {rule for rule in saboteur.breaks if any(each.startswith(rule) for each in said)}
        if found == {*saboteur.breaks}:
            break
    assert found == {*saboteur.breaks}


def test_there_are_ten_at_least() -> None:
    assert len({saboteur.name for saboteur in SABOTEURS}) >= 10
    assert all(saboteur.reported for saboteur in SABOTEURS)


def test_each_breaks_a_rule_that_there_is() -> None:
    rules = {*RULES, *(f"nothing_broke: {text}" for text in BROKEN.values())} - {"nothing_broke"}
    assert all(saboteur.breaks and {*saboteur.breaks} <= rules for saboteur in SABOTEURS)
