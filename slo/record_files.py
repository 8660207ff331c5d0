"""Records on disk: JSON lines, or Parquet where pyarrow is installed. What is written can be read back."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pagewire.slo.record import Record

MEASURES = ("ttft", "tpot", "e2e", "late")  # as columns in seconds, for whoever reads a file without us


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as a row, its measures with it."""
    return dataclasses.asdict(record) | {f"{name}_s": record.value_s(name) for name in MEASURES}


def record_of(row: dict[str, Any]) -> Record:
    """Return the record of a row, of an earlier version too: what was not recorded then is as where a server is silent.

    Raises ValueError naming the field without which it is none.
    """
    fields = dataclasses.fields(Record)
    for field in fields:
        if field.name not in row and field.default is dataclasses.MISSING:
            raise ValueError(f"a record has no {field.name}")
    told = {field.name: row[field.name] for field in fields if field.name in row}
    return Record(**told | {"gaps_s": tuple(told["gaps_s"])})


@contextmanager
def record_file(path: Path) -> Iterator[Callable[[Record], None]]:
    """Yield what adds a record to a new file: JSON lines as they come, or Parquet, all at the end, by the file's name.

    Raises OSError, and ValueError where Parquet needs pyarrow.
    """
    if path.suffix == ".parquet":
        arrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
        rows: list[dict[str, Any]] = []
        try:
            yield lambda record: rows.append(row_of(record))
        finally:
            parquet.write_table(arrow.Table.from_pylist(rows), path)
        return
    with path.open("w", encoding="utf-8") as out:
        yield lambda record: print(json.dumps(row_of(record)), file=out)


def read_records(path: Path) -> list[Record]:
    """Return the records of a file that `record_file` wrote; raises ValueError naming what it lacks."""
    if path.suffix == ".parquet":
        return [record_of(row) for row in _pyarrow("pyarrow.parquet").read_table(path).to_pylist()]
    with path.open(encoding="utf-8") as lines:
        return [record_of(json.loads(line)) for line in lines]


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError("Parquet needs pyarrow: install pagewire[slo], or name a .jsonl file") from error
