"""Virtual time: what is asked for comes in the order of its moments, and time never goes back."""

from __future__ import annotations

import pytest

from pagewire.slo.simulation.agenda import Agenda


def test_events_come_in_the_order_of_their_moments_and_of_one_moment_as_they_were_asked_for() -> None:
    agenda, seen = Agenda(), list[tuple[str, float]]()

    def note(name: str, *more: str) -> None:
        seen.append((name, agenda.now()))
        if more:
            agenda.after(1.0, note, *more)

    agenda.at(3.0, note, "late")
    agenda.at(1.0, note, "first", "a second later")
    agenda.after(2.0, note, "behind it")
    agenda.at(3.0, note, "late, and asked for later")
    assert agenda.now() == 0.0
    steps = 0
    while (happened := agenda.step()) is True:
        steps += 1
    assert happened is False
    assert steps == len(seen)
    assert seen == [
        ("first", 1.0), ("behind it", 2.0), ("a second later", 2.0), ("late", 3.0), ("late, and asked for later", 3.0),
    ]  # fmt: skip
    assert agenda.now() == 3.0


def test_what_is_over_is_no_moment_to_come_and_now_is() -> None:
    agenda, seen = Agenda(), list[float]()
    agenda.at(2.0, seen.append, 2.0)
    agenda.step()
    with pytest.raises(ValueError, match="is over"):
        agenda.at(1.9, seen.append, 1.9)
    agenda.at(2.0, seen.append, 2.5)
    while agenda.step():
        pass
    assert seen == [2.0, 2.5]
