"""What the shipped dashboards and rules ask of Prometheus, as Grafana sends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from source_tree import ROOT

PROMETHEUS = ROOT / "compose" / "prometheus"
DASHBOARDS = sorted((ROOT / "compose" / "grafana" / "dashboards").glob("*.json"))


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a dashboard's panels, without the rows that they lie in."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def filled_in(expression: str, *, interval: str = "5m") -> str:
    """Return an expression with its variables as they are where a user has chosen nothing: all."""
    return re.sub(r"\$\{?\w+\}?", ".*", expression.replace("$__rate_interval", interval))


def asked(file: Path, *, interval: str) -> Iterator[tuple[str, str]]:
    """Yield the panel's title and the expression for all that a dashboard asks for."""
    for panel in panels(json.loads(file.read_text())):
        for target in panel["targets"]:
            yield panel["title"], filled_in(target["expr"], interval=interval)
