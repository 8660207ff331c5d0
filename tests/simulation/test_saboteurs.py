"""Faults that other servers had, planted in the product: the simulation finds each, within so many seeds."""

from __future__ import annotations

import os

import pytest
from simulated.runner import outcomes
from simulated.saboteurs import SABOTEURS, Saboteur


@pytest.mark.parametrize("saboteur", SABOTEURS, ids=lambda saboteur: saboteur.name)
def test_a_planted_fault_is_found(saboteur: Saboteur) -> None:
    planted = saboteur.plant()  # kept, for as long as the process lives: what is collected is taken out again

    def plant() -> None:
        planted.__enter__()

    played = outcomes(range(saboteur.within), processes=os.cpu_count() or 1, prepare=plant)
    assert any(outcome.violations for outcome in played)


def test_there_are_ten_at_least() -> None:
    assert len({saboteur.name for saboteur in SABOTEURS}) >= 10
    assert all(saboteur.reported for saboteur in SABOTEURS)
