"""JSON and TOML of others: values and numbers are taken as they stand, and whatever is wrong is said with its place."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pagewire.core.documents import parse_json, parse_object, parse_toml, real, whole

DEEP = "[" * 200_000


def test_texts_are_the_values_that_they_stand_for() -> None:
    assert parse_json("[1, null]", "a.json") == [1, None]
    assert parse_json(b'"\xc3\xa9"', "a.json") == "é"
    assert parse_object('{"a": {}}', "a.json") == {"a": {}}
    assert parse_toml("a = 1\n[b]\nc = true", "a.toml") == {"a": 1, "b": {"c": True}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "^a.json is not JSON: Expecting property name"),
        (b"\xff", "^a.json is not JSON: 'utf-8' codec"),
        (DEEP, "^a.json is not JSON: it is nested too deeply$"),
        ("[]", "^a.json is not a JSON object$"),
        ("9" * 5000, "^a.json is not JSON: "),
    ],
    ids=["half", "no text", "deep", "a list", "long"],
)
def test_what_is_no_object_is_said_with_its_place(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_object(text, "a.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [("a", "^a.toml is not TOML: Expected '='"), (f"a = {DEEP}", "^a.toml is not TOML: it is nested too deeply$")],
    ids=["half", "deep"],
)
def test_what_is_no_table_is_said_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_toml(text, "a.toml")


@pytest.mark.parametrize(
    ("value", "bounds", "number"),
    [
        (1, {}, 1),
        (2.0, {}, 2),
        (2**31 - 1, {}, 2**31 - 1),
        (0, {"least": 0}, 0),
        (-5.0, {"least": -5, "most": -5}, -5),
    ],
)
def test_whole_numbers_are_taken_however_they_are_written(value: Any, bounds: dict[str, int], number: int) -> None:
    found = whole({"a": value}, "a", **bounds)
    assert (found, type(found)) == (number, int)


@pytest.mark.parametrize(
    ("value", "bounds", "between"),
    [
        (None, {}, "1 to 2147483647: None"),
        (0, {}, "1 to 2147483647: 0"),
        (2**31, {}, "1 to 2147483647: 2147483648"),
        (2.5, {}, "1 to 2147483647: 2.5"),
        (math.nan, {}, "1 to 2147483647: nan"),
        (math.inf, {}, "1 to 2147483647: inf"),
        (True, {}, "1 to 2147483647: True"),
        ("7", {}, "1 to 2147483647: '7'"),
        (4, {"most": 3}, "1 to 3: 4"),
        (-1.0, {"least": 0}, "0 to 2147483647: -1"),
        pytest.param(10**5000, {}, "1 to 2147483647: a very long number", id="very long"),
        pytest.param("x" * 1000, {}, f"1 to 2147483647: '{'x' * 99}$", id="cut short"),
    ],
)
def test_what_is_no_whole_number_within_the_bounds_is_named(value: Any, bounds: dict[str, int], between: str) -> None:
    with pytest.raises(ValueError, match=f"^a is not a whole number from {between}"):
        whole({"a": value} if value is not None else {}, "a", **bounds)


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), (0, 0.0), (-2.5, -2.5), (10**300, 1e300)])
def test_numbers_are_taken_as_floats(value: Any, number: float) -> None:
    found = real({"a": value}, "a")
    assert (found, type(found)) == (number, float)


@pytest.mark.parametrize(
    "value", [None, True, "1", [], math.nan, -math.inf, 10**400, pytest.param(10**5000, id="very long")]
)
def test_what_is_no_finite_number_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^a is not a number: "):
        real({"a": value} if value is not None else {}, "a")
