"""Kinds of devices: what fits into their memory, what they cost in time, and what two of them are together."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pagewire.slo.costs.cost_model import LinkLaw
from pagewire.slo.costs.roofline import Device, ModelShape, roofline
from pagewire.slo.planning.device_kind import DeviceKind, joint_costs

# 16384 bytes of KV a token, 2 GB of weights.
MODEL = ModelShape(name="m", parameters=1e9, num_layers=16, num_heads=16, num_kv_heads=4, head_dim=64)
KIND = DeviceKind(name="a", flops=1e14, bandwidth=4e11, memory=8e9, price_per_hour=2.0, link=10e9)
COSTS = dataclasses.replace(
    roofline(MODEL, Device(flops=5e13, bandwidth=1e11), link_bytes_per_s=1e9, link_latency_s=0.5), frame_s=0.007
)


@pytest.mark.parametrize("name", ["memory", "price_per_hour", "link"])
@pytest.mark.parametrize("figure", [0.0, -1.0, math.nan])
def test_a_kind_has_memory_a_price_and_a_link(name: str, figure: float) -> None:
    with pytest.raises(ValueError, match=f"^a: {name} must be positive, is "):
        dataclasses.replace(KIND, **{name: figure})  # type: ignore[arg-type]
    assert getattr(dataclasses.replace(KIND, **{name: 0.5}), name) == 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [{"flops": 0.0}, {"bandwidth": 0.0}, {"efficiency": 0.0}, {"efficiency": 1.5}])
def test_a_kind_computes_or_was_measured(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^a: no device: "):
        dataclasses.replace(KIND, **told)
    measured = dataclasses.replace(KIND, costs=COSTS, **told)
    assert measured.cost_model(MODEL) == dataclasses.replace(KIND, costs=COSTS).cost_model(MODEL)


@pytest.mark.parametrize("told", [{}, {"flops": 1e14}, {"bandwidth": 4e11}])
def test_what_computes_has_to_be_told(told: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^a: no device: "):
        DeviceKind(name="a", memory=8e9, price_per_hour=2.0, link=10e9, **told)  # type: ignore[arg-type]


def test_costs_are_those_of_the_data_sheet_or_those_measured_over_its_own_link() -> None:
    kind = dataclasses.replace(KIND, efficiency=0.5, link_latency_s=0.25)
    device = Device(flops=1e14, bandwidth=4e11, efficiency=0.5)
    assert kind.cost_model(MODEL) == roofline(MODEL, device, link_bytes_per_s=10e9, link_latency_s=0.25)
    link = LinkLaw(latency_s=0.25, bytes_per_s=10e9, window_bytes=9, message_bytes=7)
    slow = dataclasses.replace(link, latency_s=0.5, bytes_per_s=1e9)
    measured = dataclasses.replace(kind, costs=dataclasses.replace(COSTS, link=slow))
    assert measured.cost_model(MODEL) == dataclasses.replace(COSTS, link=link)
    with pytest.raises(ValueError, match="a: its costs are of a model with 16384 bytes of KV a token, m has 8192"):
        measured.cost_model(dataclasses.replace(MODEL, num_layers=8))
    # Unless told otherwise, a link needs no part of a millisecond that anybody would notice.
    assert 0 < KIND.cost_model(MODEL).link.latency_s < 1e-3


@pytest.mark.parametrize(
    ("memory", "block_size", "blocks"),
    [
        (8e9, 64, 4959),  # 7.2 GB less 2 GB, by 1 MiB
        *((8e9, 16, 19836), (2e9 / 0.9 + 65e6, 1, 3570), (2e9 / 0.9 + 1.2e6, 64, 1), (2e9 / 0.9 + 1.1e6, 64, 0)),
        *((2e9 / 0.9, 64, 0), (2e9, 64, 0), (1.0, 64, 0)),
    ],
)
def test_blocks_fit_beside_the_weights_into_nine_tenths(memory: float, block_size: int, blocks: int) -> None:
    assert dataclasses.replace(KIND, memory=memory).kv_blocks(MODEL, block_size) == blocks


def test_weights_are_as_large_as_their_elements() -> None:
    assert KIND.kv_blocks(dataclasses.replace(MODEL, element_bytes=4.0), 64) == 1525  # 3.2 GB by 2 MiB


def test_two_kinds_have_each_its_law_and_of_the_link_what_both_can() -> None:
    def measured(name: str, link: LinkLaw, noise: float, step_s: float) -> DeviceKind:
        line = dataclasses.replace(COSTS.decode.lines[0], step_s=step_s)
        law = dataclasses.replace(COSTS.decode, lines=(line,))
        costs = dataclasses.replace(COSTS, link=link, noise=noise, prefill=law, decode=law)
        return dataclasses.replace(KIND, name=name, costs=costs, link=link.bytes_per_s, link_latency_s=link.latency_s)

    here = measured("b", LinkLaw(latency_s=0.1, bytes_per_s=5.0, window_bytes=40, message_bytes=30), 0.2, 1.0)
    there = measured("c", LinkLaw(latency_s=0.2, bytes_per_s=3.0, window_bytes=50, message_bytes=20), 0.1, 2.0)
    for prefill, decode in ((there, here), (here, there)):
        joint = joint_costs(MODEL, prefill, decode)
        assert joint.link == LinkLaw(latency_s=0.2, bytes_per_s=3.0, window_bytes=40, message_bytes=20)
        assert joint.noise == 0.2
        assert joint.prefill == prefill.cost_model(MODEL).prefill
        assert joint.decode == decode.cost_model(MODEL).decode
        assert (joint.frame_s, joint.token_bytes) == (0.007, 16384)
