"""JSON and TOML that somebody else wrote: texts to values, and the numbers in them.

Knows no file's meaning. Invariant: whatever is wrong with a text is a ValueError that says where, however deep it is
nested and however long its numbers are; a number that is taken has the type and the bounds that were asked for.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

MAX_WHOLE = 2**31 - 1


def parse_json(text: str | bytes, where: str) -> Any:
    """Return the value of a JSON text; raises ValueError naming `where` it stands."""
    return _parsed(json.loads, text, where, "JSON")


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the object that a JSON text is; raises ValueError naming `where` it stands."""
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object")
    return value


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the table of a TOML text; raises ValueError naming `where` it stands."""
    table: dict[str, Any] = _parsed(tomllib.loads, text, where, "TOML")
    return table


def whole(table: Mapping[str, Any], name: str, *, least: int = 1, most: int = MAX_WHOLE) -> int:
    """Return a whole number of an object, 2.0 is one too; raises ValueError naming it where it is none or not there."""
    value = table.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is not a whole number from {least} to {most}: {_shown(value)}")
    return value


def real(table: Mapping[Any, Any], name: Any) -> float:
    """Return a finite number of an object; raises ValueError naming it where it is none or not there."""
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise ValueError(f"{name} is not a number: {_shown(value)}")
    return float(value)


def _parsed(parse: Callable[[Any], Any], text: str | bytes, where: str, form: str) -> Any:
    try:
        return parse(text)
    except RecursionError as error:
        raise ValueError(f"{where} is not {form}: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{where} is not {form}: {error}") from error


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.100}"
    except ValueError:  # a number of thousands of digits
        return "a very long number"
