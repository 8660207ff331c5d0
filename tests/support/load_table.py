"""The tables of load in docs/reliability.md, from the figures of bench/results/load.json: every row, nothing else.

`python tests/support/load_table.py` writes them between their two marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marked_page import replaced

ROOT = Path(__file__).parents[2]
PAGE, FIGURES = ROOT / "docs" / "reliability.md", ROOT / "bench" / "results" / "load.json"
BEGIN, END = "<!-- load: tests/support/load_table.py -->", "<!-- end of load -->"


def tables(said: dict[str, Any]) -> str:
    """Return a table of figures and of what was promised for each scenario."""
    return "\n".join("".join(_lines(row)) for row in said["rows"])


def _lines(row: dict[str, Any]) -> Iterator[str]:
    machine = f"{row['machine']['cpu']} {row['machine']['family-model']}"
    condition = f"; {machine}; {row['taken']}" if row["taken"] else f"; {machine}"
    yield f"**{row['scenario'][0].upper()}{row['scenario'][1:]}** (`{row['command']}`{condition})\n\n"
    yield "| | |\n|---|---|\n"
    for what, figure in row["figures"].items():
        yield f"| {what} | {_number(figure)} |\n"
    for what, is_kept in row["promises"].items():
        yield f"| promise: {what} | {'kept' if is_kept else '**broken**'} |\n"
    for what, is_reached in row["aims"].items():
        yield f"| aim: {what} | {'reached' if is_reached else '**missed**'} |\n"


def _number(figure: Any) -> str:
    return f"{figure:,}" if isinstance(figure, int) else str(figure)


def page(text: str, said: dict[str, Any]) -> str:
    """Return the page with the tables of these figures in place of its own."""
    return replaced(text, BEGIN, END, tables(said))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), json.loads(FIGURES.read_text())))
