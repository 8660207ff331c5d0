"""Files of JSON and TOML that somebody else wrote. What is wrong with one is a ValueError that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagewire.core.documents import parse_object, parse_toml


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON; raises OSError, and ValueError naming the file."""
    return parse_object(path.read_bytes(), str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a file of TOML; raises OSError, and ValueError naming the file."""
    data = path.read_bytes()
    try:
        return parse_toml(data.decode(), str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
