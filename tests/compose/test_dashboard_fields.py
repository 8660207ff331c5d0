"""Dashboards by Grafana's own models of them: no field, and no option of a panel of its kind, is unknown there.

The models read what they know and leave out the rest, so a misspelt name does not come back. They judge names and where
these stand, and of values the units; other values, and what is drawn, are nobody's business here.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboards import DASHBOARDS, panels
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard


@pytest.fixture(scope="module", autouse=True)
def kinds_of_panels() -> None:
    """Without these, options of panels and queries would come back as they are."""
    register_default_plugins()


def unknown(board: dict[str, Any]) -> list[str]:
    """Return where something stands that does not come back."""
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(board))))
    return list(_lost(board, known, ""))


def _lost(told: Any, known: Any, at: str) -> Iterator[str]:
    if isinstance(told, dict) and isinstance(known, dict):
        for key, value in told.items():
            yield from _lost(value, known[key], f"{at}.{key}") if key in known else [f"{at}.{key}"]
    elif isinstance(told, list) and isinstance(known, list) and len(told) == len(known):
        for index, (one, other) in enumerate(zip(told, known, strict=True)):
            yield from _lost(one, other, f"{at}[{index}]")
    elif told != known:
        yield at


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_grafana_knows_every_field(file: Path) -> None:
    assert unknown(json.loads(file.read_text())) == []


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_grafana_knows_every_unit(file: Path) -> None:
    """One that it does not know it writes behind the number as it stands."""
    known = {value for name, value in vars(units).items() if not name.startswith("_") and isinstance(value, str)}
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in panels(json.loads(file.read_text()))} <= known


def test_a_name_that_grafana_does_not_know_is_found_out() -> None:
    board = json.loads(DASHBOARDS[0].read_text())
    at = next(index for index, each in enumerate(board["panels"]) if each["type"] == "timeseries")
    panel = board["panels"][at]
    panel["fieldConfig"]["defaults"]["custom"]["fillOpacty"] = 5
    panel["options"]["legend"]["display"] = "list"
    panel["targets"][0]["legend"] = "p50"
    board["refreshes"] = "10s"
    assert set(unknown(board)) == {
        f".panels[{at}].fieldConfig.defaults.custom.fillOpacty",
        f".panels[{at}].options.legend.display",
        f".panels[{at}].targets[0].legend",
        ".refreshes",
    }
