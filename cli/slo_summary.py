"""Where a command's figures go (--json): tried before anything is measured, written before anything is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def try_out(path: Path | None) -> None:
    """Raise OSError where no summary could be written; what is there already stays, and nothing new does."""
    if path is None:
        return
    is_new = not path.exists()
    with path.open("ab"):
        pass
    if is_new:
        path.unlink()


def write(path: Path | None, told: Mapping[str, Any]) -> None:
    """Write the figures, where a file was named. Raises OSError."""
    if path is not None:
        path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
