"""Fields of a recording's line: which values each reading takes, and that its error says where the others stand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pagewire.slo.workloads.formats.fields import MAX_TOKENS, Fields, TraceError

ABSENT = object()


def fields(value: Any) -> Fields:
    return Fields({} if value is ABSENT else {"x": value}, "a.jsonl", 3)


@pytest.mark.parametrize("value", [ABSENT, None])
def test_what_is_absent_or_null_is_missing_however_it_is_read(value: Any) -> None:
    line = fields(value)
    assert "x" not in line
    for read in (lambda: line.whole("x", 0), lambda: line.real("x"), lambda: line.text("x"), lambda: line.ids("x")):
        with pytest.raises(TraceError, match=r"^a\.jsonl, line 3, x: missing$"):
            read()


@pytest.mark.parametrize("value", [0, "", [], False, 1])
def test_what_is_there_is_there_even_where_it_is_empty(value: Any) -> None:
    assert "x" in fields(value)


@pytest.mark.parametrize(
    ("value", "at_least", "number"),
    [
        *((0, 0, 0), (1, 1, 1), ("0", 0, 0), (" 12 ", 1, 12), (MAX_TOKENS, 0, MAX_TOKENS)),
        *((str(MAX_TOKENS), 0, MAX_TOKENS), (-3, -3, -3), (-4, -3, None), (0, 1, None), ("0", 1, None)),
        *((MAX_TOKENS + 1, 0, None), (str(MAX_TOKENS + 1), 0, None), (True, 0, None), (1.0, 0, None), ("1.0", 0, None)),
        *(("", 0, None), ("one", 0, None), ([1], 0, None), ({}, 0, None)),
    ],
)
def test_a_whole_number_is_one_of_json_or_of_text_within_its_bounds(
    value: Any, at_least: int, number: int | None
) -> None:
    if number is None:
        with pytest.raises(
            TraceError, match=rf"^a\.jsonl, line 3, x: .* is not a whole number from {at_least} to {MAX_TOKENS}"
        ):
            fields(value).whole("x", at_least)
    else:
        read = fields(value).whole("x", at_least)
        assert (read, type(read)) == (number, int)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((0, 0.0), (0.5, 0.5), (7, 7.0), ("1.5e3", 1500.0), (" 2 ", 2.0), (1e308, 1e308)),
        *((-0.001, None), (-1, None), ("-1", None), (math.inf, None), (math.nan, None), ("inf", None), ("nan", None)),
        *((True, None), (False, None), ("", None), ("soon", None), ([1.0], None), ({}, None), (10**400, None)),
    ],
)
def test_a_number_is_finite_and_from_0_on(value: Any, number: float | None) -> None:
    if number is None:
        with pytest.raises(TraceError, match=r"^a\.jsonl, line 3, x: .* is not a number from 0 on$"):
            fields(value).real("x")
    else:
        read = fields(value).real("x")
        assert (read, type(read)) == (number, float)


@pytest.mark.parametrize(("value", "is_text"), [("a", True), (" ", True), ("", False), (1, False), (["a"], False)])
def test_a_text_is_not_empty(value: Any, is_text: bool) -> None:
    if is_text:
        assert fields(value).text("x") == value
    else:
        with pytest.raises(TraceError, match=r"^a\.jsonl, line 3, x: .* is not a text$"):
            fields(value).text("x")


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        *(([], ()), ([0], (0,)), ([3, 1, 3], (3, 1, 3)), ([-1], None), ([1, -1], None), ([-1, 1], None)),
        *(([True], None), ([1, 2.0], None), (["1"], None), ("12", None), ({"1": 2}, None), (1, None), ([[1]], None)),
    ],
)
def test_ids_are_a_list_of_whole_numbers_from_0_on(value: Any, ids: tuple[int, ...] | None) -> None:
    if ids is None:
        with pytest.raises(TraceError, match=r"^a\.jsonl, line 3, x: not a list of whole numbers from 0 on$"):
            fields(value).ids("x")
    else:
        assert fields(value).ids("x") == ids


def test_an_error_says_where_it_is() -> None:
    error = fields(1).wrong("x", "is odd")
    assert (error.file, error.line, error.field, str(error)) == ("a.jsonl", 3, "x", "a.jsonl, line 3, x: is odd")
    whole = fields(1).wrong("", "is no JSON")
    assert (whole.field, str(whole)) == ("", "a.jsonl, line 3: is no JSON")
