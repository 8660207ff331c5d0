"""How shares, spans and many values are told in a figure."""

from __future__ import annotations

import pytest

from pagewire.slo.report.figure import extremes, milliseconds, percent


@pytest.mark.parametrize(
    ("share", "digits", "expected"),
    [(0.0, 1, "0.0 %"), (0.1234, 1, "12.3 %"), (0.9, 0, "90 %"), (1.0, 2, "100.00 %")],
)
def test_a_share_is_told_in_percent(share: float, digits: int, expected: str) -> None:
    assert percent(share, digits) == expected


def test_a_share_has_one_digit_unless_told() -> None:
    assert percent(0.1234) == "12.3 %"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a": 0.5}, "a 50 %"),
        ({"a": 0.5, "b": 1.0, "c": 0.25}, "a 50 %, b 100 %, c 25 %"),
        ({"a": 0.5, "b": 0.25, "c": 1.0, "d": 0.3}, "from 25 % (b) to 100 % (c)"),
    ],
)
def test_a_few_values_are_told_one_by_one_and_of_more_the_ends(values: dict[str, float], expected: str) -> None:
    assert extremes(values, lambda value: percent(value, 0)) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(None, ""), (0.0, "0.0"), (0.01234, "12.3"), (2.0, "2000.0")])
def test_a_span_is_told_in_milliseconds(seconds: float | None, expected: str) -> None:
    assert milliseconds(seconds) == expected
