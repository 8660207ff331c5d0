"""Kinds of devices that can be rented: what each computes, holds, costs and is linked by. One device is one pod.

Figures are of whole devices: a pod over four of them is a kind of its own, with four times the figures. Knows no
composition.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.slo.cost_model import CostModel, LinkLaw
from pagewire.slo.roofline import Device, ModelShape, roofline

USABLE = 0.9  # of a device's memory; the rest is for activations and the runtime
NUMBERS = ("flops", "bandwidth", "efficiency", "memory", "price_per_hour", "link", "link_latency_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """`flops` per second, `bandwidth` and `link` in bytes a second, `memory` in bytes, a price in any currency.

    With `costs`, a calibrated cost model, `flops`, `bandwidth` and `efficiency` say nothing.
    """

    name: str
    memory: float
    price_per_hour: float
    link: float
    flops: float = 0.0
    bandwidth: float = 0.0
    efficiency: float = 0.6
    link_latency_s: float = 1e-4
    costs: CostModel | None = None

    def __post_init__(self) -> None:
        """Refuse what nobody rents with ValueError."""
        for name in ("memory", "price_per_hour", "link"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{self.name}: {name} must be positive, is {getattr(self, name)}")
        if self.costs is None:
            try:
                Device(flops=self.flops, bandwidth=self.bandwidth, efficiency=self.efficiency)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from error

    def cost_model(self, model: ModelShape) -> CostModel:
        """Return what steps and links cost where every pod is of this kind; raises ValueError on another's costs."""
        if self.costs is None:
            device = Device(flops=self.flops, bandwidth=self.bandwidth, efficiency=self.efficiency)
            return roofline(model, device, link_bytes_per_s=self.link, link_latency_s=self.link_latency_s)
        if self.costs.token_bytes != model.token_bytes:
            raise ValueError(
                f"{self.name}: its costs are of a model with {self.costs.token_bytes} bytes of KV a token, "
                f"{model.name} has {model.token_bytes}"
            )
        link = dataclasses.replace(self.costs.link, bytes_per_s=self.link, latency_s=self.link_latency_s)
        return dataclasses.replace(self.costs, link=link)

    def kv_blocks(self, model: ModelShape, block_size: int) -> int:
        """Return how many blocks fit beside the weights, 0 where not even those do."""
        left = self.memory * USABLE - model.parameters * model.element_bytes
        return max(0, int(left // (model.token_bytes * block_size)))


def joint_costs(model: ModelShape, prefill: DeviceKind, decode: DeviceKind) -> CostModel:
    """Return the costs of a cluster whose prefill pods are of one kind and whose decode pods of another.

    The link between them is as slow as the slower of both.
    """
    here, there = decode.cost_model(model), prefill.cost_model(model)
    link = LinkLaw(
        latency_s=max(here.link.latency_s, there.link.latency_s),
        bytes_per_s=min(here.link.bytes_per_s, there.link.bytes_per_s),
        window_bytes=min(here.link.window_bytes, there.link.window_bytes),
        message_bytes=min(here.link.message_bytes, there.link.message_bytes),
    )
    return dataclasses.replace(here, prefill=there.prefill, link=link, noise=max(here.noise, there.noise))


def read_kinds(path: Path) -> tuple[DeviceKind, ...]:
    """Return the `[[kind]]` tables of a TOML file; raises ValueError, which names what is wrong, and OSError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("kind")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
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
    for key, value in raw.items():
        if key not in NUMBERS:
            raise ValueError(f"{name}: {key!r} is none of name, costs, {', '.join(NUMBERS)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}: {key} is {value!r}, not a number")
    if missing := [each for each in ("memory", "price_per_hour", "link") if each not in raw]:
        raise ValueError(f"{name} has no {missing[0]}")
    if costs is None:
        return DeviceKind(name=name, **raw)
    text = (folder / str(costs)).read_text(encoding="utf-8")
    return DeviceKind(name=name, costs=CostModel.from_json(text), **raw)
