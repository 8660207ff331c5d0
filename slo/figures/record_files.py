"""Records on disk: JSON lines, or Parquet where pyarrow is installed. What is written can be read back."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from pagewire.core.documents import parse_object, real, whole
from pagewire.slo.figures.record import MEASURES, Record


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as a row, its measures with it, for whoever reads a file without us."""
    return dataclasses.asdict(record) | {f"{name}_s": record.value_s(name) for name in MEASURES}


def record_of(row: dict[str, Any]) -> Record:
    """Return the record of a row, of an earlier version too: what was not recorded then is as where a server is silent.

    Raises ValueError naming the field without which it is none, or which is not what it has to be.
    """
    fields = dataclasses.fields(Record)
    for field in fields:
        if field.name not in row and field.default is dataclasses.MISSING:
            raise ValueError(f"a record has no {field.name}")
    told = {field.name: row[field.name] for field in fields if field.name in row}
    _check(told)
    return Record(**told | {"gaps_s": tuple(told["gaps_s"])})


def _check(told: dict[str, Any]) -> None:
    for name in ("intended_s", "sent_s"):
        real(told, name)
    for name in ("arrival", "turn", "input_tokens", "output_tokens", "wanted_tokens"):
        whole(told, name, least=0)
    for name in ("first_s", "last_s", "ended_s", "cached_tokens"):
        if told.get(name) is not None:
            real(told, name)
    if not isinstance(told["gaps_s"], list | tuple):
        raise ValueError("gaps_s is no list")
    parts = told.get("ttft_parts_s") or {}
    if not isinstance(parts, dict):
        raise ValueError("ttft_parts_s is no object")
    for numbers in (dict(enumerate(told["gaps_s"])), {name: each for name, each in parts.items() if each is not None}):
        for place in numbers:
            real(numbers, place)
    for name in ("error", "detail", "session", "request_id"):
        if not isinstance(told.get(name, ""), str):
            raise ValueError(f"{name} is no text")


@contextmanager
def record_file(path: Path) -> Iterator[Callable[[Record], None]]:
    """Yield what adds a record to a new file: JSON lines as they come, or Parquet, all at the end, by the file's name.

    What is there already stays until there is a first record. Raises OSError, and ValueError where Parquet needs
    pyarrow.
    """
    if path.suffix == ".parquet":
        arrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
        rows: list[dict[str, Any]] = []
        try:
            yield lambda record: rows.append(row_of(record))
        finally:
            if rows:
                with path.open("wb") as table:
                    parquet.write_table(arrow.Table.from_pylist(rows), table)
        return
    with ExitStack() as opened:
        out: IO[str] | None = None

        def add(record: Record) -> None:
            nonlocal out
            if out is None:  # line by line: what was told survives a kill
                out = opened.enter_context(path.open("w", encoding="utf-8", buffering=1))
            print(json.dumps(row_of(record)), file=out)

        yield add


def read_records(path: Path) -> list[Record]:
    """Return the records of a file that `record_file` wrote; raises ValueError naming what it lacks."""
    if path.suffix == ".parquet":
        return [record_of(row) for row in _pyarrow("pyarrow.parquet").read_table(path).to_pylist()]
    with path.open(encoding="utf-8") as lines:
        return [record_of(parse_object(line, f"line {number}")) for number, line in enumerate(lines, start=1)]


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError("Parquet needs pyarrow: install pagewire[slo], or name a .jsonl file") from error
