"""A file that a command writes in the end (--json, --output): tried before anything is done that could be lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pagewire.slo.figures.record import Record
from pagewire.slo.figures.record_files import record_file


def try_out(path: Path | None) -> None:
    """Raise OSError where it could not be written; what is there already stays, and nothing new does.

    A pipe or a device is taken at its word: whoever reads it would see an end.
    """
    if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
        return
    is_new = not path.exists()
    with path.open("ab"):
        pass
    if is_new:
        path.unlink()


def write_json(path: Path | None, told: Mapping[str, Any]) -> None:
    """Write figures, where a file was named. Raises OSError."""
    if path is not None:
        path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


@contextmanager
def kept(path: Path | None) -> Iterator[Callable[[Record], None]]:
    """Yield what adds a record to a file, where one was named, until that fails once.

    A full disk does not end what is measured: why it failed is raised at the end, if nothing else is.
    """
    error: OSError | None = None

    def keep(record: Record) -> None:
        nonlocal error
        if error is None:
            try:
                add(record)
            except OSError as failure:
                error = failure

    with record_file(path) if path is not None else nullcontext(lambda _: None) as add:
        yield keep
        if error is not None:
            raise error
