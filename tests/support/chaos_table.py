"""The table of docs/reliability.md, from the figures of bench/results/chaos.json: every row, nothing else.

`python tests/support/chaos_table.py` writes it between its two marks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marked_page import replaced

ROOT = Path(__file__).parents[2]
PAGE, FIGURES = ROOT / "docs" / "reliability.md", ROOT / "bench" / "results" / "chaos.json"
BEGIN, END = "<!-- chaos: tests/support/chaos_table.py -->", "<!-- end of chaos -->"
HEAD = (
    "| fault | requests | failed | wrong tokens | blocks leaked | recovery, s | whole, s | missed before | after |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)
KINDS = ("process", "resource", "network", "namespace")


def table(said: dict[str, Any]) -> str:
    """Return the table of these figures."""
    rows = sorted(said["rows"], key=lambda row: KINDS.index(row["kind"]))
    return HEAD + "".join(_line(row) for row in rows)


def _line(row: dict[str, Any]) -> str:
    failed = ", ".join(f"{many} {code}" for code, many in sorted(row["failed"].items())) or "0"
    leaked = round(sum(row["leaked"].values()))
    return (
        f"| {row['fault']} | {row['requests']} | {failed} | {row['wrong']} | {leaked} |"
        f" {row['recovery_s']:.1f} | {row['whole_s']:.1f} | {row['missed_before']} of {row['before']} |"
        f" {row['missed_after']} of {row['after']} |\n"
    )


def page(text: str, said: dict[str, Any]) -> str:
    """Return the page with the table of these figures in place of its own."""
    return replaced(text, BEGIN, END, table(said))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), json.loads(FIGURES.read_text())))
