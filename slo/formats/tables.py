"""Recordings that are tables of lengths: Azure's and BurstGPT's CSV. No two of their prompts share anything."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pagewire.slo.arrival import Arrival
from pagewire.slo.formats.fields import Fields, TraceError
from pagewire.slo.formats.recording import Unshared, from_zero
from pagewire.slo.workload import Workload

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_azure(path: Path, *, seed: int = 0) -> Workload:
    """Return a recording of Azure's: TIMESTAMP (a date and time), ContextTokens, GeneratedTokens.

    An answer of no tokens is asked for one. Raises TraceError, which names line and field, and OSError.
    """
    unshared = Unshared()
    arrivals = [
        unshared.arrival(_moment_s(row), row.whole("ContextTokens", 1), max(1, row.whole("GeneratedTokens", 0)))
        for row in _rows(path, AZURE)
    ]
    return Workload(name=path.name, source=from_zero(arrivals, path.name), seed=seed)


def read_burstgpt(path: Path, *, seed: int = 0) -> Workload:
    """Return a recording of BurstGPT's: Timestamp (seconds), Request tokens, Response tokens; models are not kept.

    Rows without response tokens are requests that failed: nobody knows what they wanted, so they are left out. Raises
    TraceError, which names line and field, and OSError.
    """
    unshared, arrivals = Unshared(), list[Arrival]()
    for row in _rows(path, BURSTGPT):
        at_s, input_tokens = row.real("Timestamp"), row.whole("Request tokens", 1)
        if output_tokens := row.whole("Response tokens", 0):
            arrivals.append(unshared.arrival(at_s, input_tokens, output_tokens))
    return Workload(name=path.name, source=from_zero(arrivals, path.name), seed=seed)


def _moment_s(row: Fields) -> float:
    text = row.text("TIMESTAMP")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise row.wrong("TIMESTAMP", f"{text!r} is not a date and time") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[Fields]:
    # What is no UTF-8 is no number either: the field says so.
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
                raise TraceError(path.name, 1, missing[0], "no such column")
            for row in reader:
                yield Fields(row, path.name, reader.line_num)
        except csv.Error as error:
            raise TraceError(path.name, reader.line_num, "", f"not CSV: {error}") from error
