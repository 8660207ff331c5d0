"""The tables of load in docs/reliability.md are those of its figures, in which no promise is broken."""

from __future__ import annotations

import json
import math

import load_table
import numpy as np
import pytest
from process_watch import slope


def test_the_page_has_the_figures() -> None:
    text = load_table.PAGE.read_text()
    assert text == load_table.page(text, json.loads(load_table.FIGURES.read_text()))


def test_every_promise_is_kept() -> None:
    rows = json.loads(load_table.FIGURES.read_text())["rows"]
    assert rows
    assert [(row["scenario"], what) for row in rows for what, is_kept in row["promises"].items() if not is_kept] == []


def test_a_slope_and_its_error_are_those_of_least_squares() -> None:
    xs = np.arange(40.0) ** 1.2
    ys = 3.0 * xs + np.random.default_rng(0).normal(size=40)
    found = slope(xs.tolist(), ys.tolist())
    (value, _), covariance = np.polyfit(xs, ys, 1, cov=True)
    assert found.value == pytest.approx(value)
    assert found.error == pytest.approx(math.sqrt(covariance[0, 0]))
    assert slope([0.0, 1.0], [2.0, 5.0]).error == math.inf
    with pytest.raises(ValueError, match="two places"):
        slope([1.0, 1.0], [2.0, 5.0])
