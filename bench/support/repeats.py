"""Measurements made again and again, several ways taking turns, and what is told of them. Knows no engine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence


def by_turns(ways: Mapping[str, Callable[[int], float]], repeats: int) -> dict[str, list[float]]:
    """Return what each way came to, asked with the number of the turn: those from 1 on, turn 0 warms up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            value = way(turn)
            if turn:
                found[name].append(value)
    return found


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third; of one value that value."""
    first, middle, third = statistics.quantiles([*values, *values[: len(values) == 1]], n=4, method="inclusive")
    return first, middle, third


def told(found: Mapping[str, Sequence[float]], form: str = ".0f") -> str:
    """Return the medians and quartiles of several, by their names, in words."""
    marks = {name: quartiles(each) for name, each in found.items()}
    return ", ".join(
        f"{name} {middle:{form}} ({low:{form}} - {high:{form}})" for name, (low, middle, high) in marks.items()
    )
