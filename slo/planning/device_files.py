"""A file of device kinds: TOML, with a calibrated cost model beside it where one is named. Knows names and units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagewire.core.document_files import read_toml
from pagewire.core.documents import real
from pagewire.slo.costs.cost_model import CostModel
from pagewire.slo.planning.device_kind import DeviceKind

NUMBERS = ("flops", "bandwidth", "efficiency", "memory", "price_per_hour", "link", "link_latency_s")


def read_kinds(path: Path) -> tuple[DeviceKind, ...]:
    """Return the `[[kind]]` tables of a TOML file; raises ValueError, which names what is wrong, and OSError."""
    tables = read_toml(path).get("kind")
    if not isinstance(tables, list) or not tables:
        raise ValueError(f"{path} has no [[kind]]")
    try:
        kinds = tuple(_kind(each, path.parent) for each in tables)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    names = [each.name for each in kinds]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{path}: two kinds are called {twice[0]!r}")
    return kinds


def _kind(table: Any, folder: Path) -> DeviceKind:
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise ValueError("a [[kind]] has no name")
    raw: dict[str, Any] = dict(table)
    name, costs = raw.pop("name"), raw.pop("costs", None)
    for key in raw:
        if key not in NUMBERS:
            raise ValueError(f"{name}: {key!r} is none of name, costs, {', '.join(NUMBERS)}")
        try:
            raw[key] = real(raw, key)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if missing := [each for each in ("memory", "price_per_hour", "link") if each not in raw]:
        raise ValueError(f"{name} has no {missing[0]}")
    if costs is None:
        return DeviceKind(name=name, **raw)
    text = (folder / str(costs)).read_text(encoding="utf-8")
    return DeviceKind(name=name, costs=CostModel.from_json(text), **raw)
