"""Kinds of devices that can be rented: what each computes, holds, costs and is linked by. One device is one pod.

Figures are of whole devices: a pod over four of them is a kind of its own, with four times the figures. Knows no
composition and no file. Pure.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pagewire.slo.costs.cost_model import CostModel, LinkLaw
from pagewire.slo.costs.roofline import Device, ModelShape, roofline

USABLE = 0.9  # of a device's memory; the rest is for activations and the runtime


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
