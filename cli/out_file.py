"""A file that a command writes in the end (--json, --output): tried before anything is done that could be lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pagewire.slo.record import Record


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


class Keep:
    """Adds records to a file until that fails once, of which it tells: a full disk does not end what is measured."""

    def __init__(self, add: Callable[[Record], None]) -> None:
        self._add = add
        self.error: OSError | None = None

    def __call__(self, record: Record) -> None:
        """Add one, unless one failed before."""
        if self.error is None:
            try:
                self._add(record)
            except OSError as error:
                self.error = error


def forget(record: Record) -> None:
    """Write nothing."""
