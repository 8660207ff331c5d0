"""Recordings that are tables of lengths: Azure's and BurstGPT's CSV. No two of their prompts share anything."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.formats.fields import Fields, TraceError
from pagewire.slo.workloads.formats.recording import recorded
from pagewire.slo.workloads.workload import PIECE_TOKENS, Workload, num_pieces

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_azure(path: Path, *, seed: int = 0) -> Workload:
    """Return a recording of Azure's: TIMESTAMP (a date and time), ContextTokens, GeneratedTokens.

    An answer of no tokens is asked for one. Raises TraceError, which names line and field, and OSError.
    """
    requests = (
        (_moment_s(row), row.whole("ContextTokens", 1), row.whole("GeneratedTokens", 0)) for row in _rows(path, AZURE)
    )
    arrivals = [*_unshared((at_s, prompt, max(1, answer)) for at_s, prompt, answer in requests)]
    return recorded(path, arrivals, seed)


def read_burstgpt(path: Path, *, seed: int = 0) -> Workload:
    """Return a recording of BurstGPT's: Timestamp (seconds), Request tokens, Response tokens; models are not kept.

    Rows without response tokens are requests that failed: nobody knows what they wanted, so they are left out, whatever
    else they say (some have no request tokens either). Raises TraceError, which names line and field, and OSError.
    """
    requests = (
        (row.real("Timestamp"), row.whole("Request tokens", 1), answer)
        for row in _rows(path, BURSTGPT)
        if (answer := row.whole("Response tokens", 0))
    )
    return recorded(path, [*_unshared(requests)], seed)


def _unshared(requests: Iterable[tuple[float, int, int]]) -> Iterator[Arrival]:
    """Yield requests of which moment and lengths alone are known: no two prompts share a piece."""
    end = 0
    for at_s, input_tokens, output_tokens in requests:
        begin, end = end, end + num_pieces(input_tokens, PIECE_TOKENS)
        turn = Turn(input_tokens=input_tokens, output_tokens=output_tokens, pieces=tuple(range(begin, end)))
        yield Arrival(at_s=at_s, turns=(turn,))


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
