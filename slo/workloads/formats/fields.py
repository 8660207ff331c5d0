"""Fields of a recording's lines, with the error that names line and field. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_TOKENS = 10_000_000  # of one request; more is a mistake


class TraceError(ValueError):
    """A recording is malformed: `file`, `line` (from 1 on) and `field` say where, "" for a whole line."""

    def __init__(self, file: str, line: int, field: str, message: str) -> None:
        super().__init__(f"{file}, line {line}{f', {field}' if field else ''}: {message}")
        self.file = file
        self.line = line
        self.field = field


class Fields:
    """The fields of one line; each is read with the bound that it has."""

    def __init__(self, values: Mapping[str, Any], file: str, line: int) -> None:
        self._values = values
        self._file = file
        self._line = line

    def __contains__(self, field: str) -> bool:
        """Return whether a field is there and not null."""
        return self._values.get(field) is not None

    def wrong(self, field: str, message: str) -> TraceError:
        """Return the error that names this line."""
        return TraceError(self._file, self._line, field, message)

    def whole(self, field: str, at_least: int) -> int:
        """Return a whole number up to MAX_TOKENS; text is read as one. Raises TraceError."""
        value = self._present(field)
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if type(number) is not int or not at_least <= number <= MAX_TOKENS:
            raise self.wrong(field, f"{value!r} is not a whole number from {at_least} to {MAX_TOKENS}")
        return number

    def real(self, field: str) -> float:
        """Return a number from 0 on; text is read as one. Raises TraceError."""
        value = self._present(field)
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise self.wrong(field, f"{value!r} is not a number from 0 on")
        return number

    def text(self, field: str) -> str:
        """Return a text that is not empty; raises TraceError."""
        value = self._present(field)
        if not isinstance(value, str) or not value:
            raise self.wrong(field, f"{value!r} is not a text")
        return value

    def ids(self, field: str) -> tuple[int, ...]:
        """Return a list of whole numbers from 0 on; raises TraceError."""
        value = self._present(field)
        if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
            raise self.wrong(field, "not a list of whole numbers from 0 on")
        return tuple(value)

    def _present(self, field: str) -> Any:
        if field not in self:
            raise self.wrong(field, "missing")
        return self._values[field]
