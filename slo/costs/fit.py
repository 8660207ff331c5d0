"""Least squares with no coefficient below 0, exactly, for the few terms that a cost has. Pure.

The best such fit is the unbounded least squares fit of those columns that it does not leave at 0. With k columns there
are 2^k sets of them to try, so k is small here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

MOST_COLUMNS = 8
LEAST_PIVOT = 1e-9  # of columns of length 1: below it one says nothing that the others do not


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Coefficients by column; root mean square and largest error, and the mean of |error| / value."""

    coefficients: tuple[float, ...]
    rms: float
    largest: float
    relative: float


def fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> Fit:
    """Return the coefficients >= 0 of rows x coefficients = values with the least sum of squared errors.

    Of columns that say the same the first ones are used. Raises ValueError where there is nothing to fit.
    """
    if not rows or len(rows) != len(values) or not 1 <= len(rows[0]) <= MOST_COLUMNS:
        raise ValueError(f"{len(rows)} rows and {len(values)} values are nothing to fit")
    size = len(rows[0])
    scales = [math.sqrt(math.fsum(row[at] ** 2 for row in rows)) for at in range(size)]
    best, least = [0.0] * size, math.fsum(value**2 for value in values)
    for count in range(1, size + 1):
        for columns in combinations([at for at in range(size) if scales[at] > 0], count):
            solved = _solve([[row[at] / scales[at] for at in columns] for row in rows], values)
            if solved is None or min(solved) < 0:
                continue
            found = [0.0] * size
            for at, coefficient in zip(columns, solved, strict=True):
                found[at] = coefficient / scales[at]
            if (error := math.fsum(each**2 for each in _errors(rows, values, found))) < least * (1 - 1e-12):
                best, least = found, error
    errors = _errors(rows, values, best)
    shares = [abs(error) / abs(value) for error, value in zip(errors, values, strict=True) if value]
    return Fit(
        coefficients=tuple(best),
        rms=math.sqrt(least / len(rows)),
        largest=max(map(abs, errors)),
        relative=math.fsum(shares) / len(shares) if shares else 0.0,
    )


def _errors(rows: Sequence[Sequence[float]], values: Sequence[float], found: Sequence[float]) -> list[float]:
    said = [math.fsum(x * c for x, c in zip(row, found, strict=True)) for row in rows]
    return [value - each for value, each in zip(values, said, strict=True)]


def _solve(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float] | None:
    """Return the least squares fit by Gram-Schmidt, None where a column is a sum of others."""
    size = len(rows[0])
    columns = [[row[at] for row in rows] for at in range(size)]
    basis: list[list[float]] = []
    upper = [[0.0] * size for _ in range(size)]
    for at, column in enumerate(columns):
        rest = list(column)
        for _ in range(2):  # once more for what rounding left
            for before, direction in enumerate(basis):
                share = _dot(direction, rest)
                upper[before][at] += share
                rest = [x - share * y for x, y in zip(rest, direction, strict=True)]
        length = math.sqrt(_dot(rest, rest))
        if length < LEAST_PIVOT:
            return None
        upper[at][at] = length
        basis.append([x / length for x in rest])
    solved = [_dot(direction, values) for direction in basis]
    for at in reversed(range(size)):
        solved[at] = (solved[at] - math.fsum(upper[at][k] * solved[k] for k in range(at + 1, size))) / upper[at][at]
    return solved


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(one, other, strict=True))
