"""The cost model of a data sheet, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.core.kv_sizing import layout_of
from pagewire.slo.costs.cost_model import StepShape
from pagewire.slo.costs.roofline import Device, ModelShape, roofline, sheet_lines

SMALL: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 16, "vocab_size": 10,
}  # fmt: skip


def test_a_roofline_is_memory_for_one_token_and_arithmetic_for_many() -> None:
    model = ModelShape(name="m", parameters=1e9, num_layers=10, num_heads=8, num_kv_heads=2, head_dim=64)
    costs = roofline(model, Device(flops=1e14, bandwidth=1e12, efficiency=0.5), link_bytes_per_s=1e9)
    assert costs.token_bytes == 2 * 10 * 2 * 64 * 2
    one = costs.decode.seconds(StepShape(decodes=1, decode_pairs=1000)) - costs.decode.overhead_s
    assert one == pytest.approx((2e9 + 1000 * costs.token_bytes) / 0.5e12)
    many = costs.prefill.seconds(StepShape(prefill_tokens=4096, prefill_pairs=0)) - costs.prefill.overhead_s
    assert many == pytest.approx(2 * 1e9 * 4096 / 0.5e14)


@pytest.mark.parametrize(
    "told",
    [
        {"flops": 0.0, "bandwidth": 1.0},
        {"flops": 1.0, "bandwidth": 0.0},
        {"flops": 1.0, "bandwidth": 1.0, "efficiency": 0.0},
        {"flops": 1.0, "bandwidth": 1.0, "efficiency": 1.01},
        {"flops": 1.0, "bandwidth": 1.0, "efficiency": -0.5},
        {"flops": -0.5, "bandwidth": 1.0},
        {"flops": 1.0, "bandwidth": -0.5},
    ],
)
def test_what_does_nothing_or_more_than_all_is_no_device(told: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no device"):
        Device(**told)
    assert Device(flops=0.5, bandwidth=0.5, efficiency=1.0).efficiency == 1.0


def test_a_config_says_a_models_shape() -> None:
    config = {
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "intermediate_size": 1536, "vocab_size": 49_152, "tie_word_embeddings": True,
    }  # fmt: skip
    shape = ModelShape.of("smollm2", config)
    assert shape.parameters == pytest.approx(134.5e6, rel=1e-3)  # norms left out
    assert shape.token_bytes == 2 * 30 * 3 * 64 * 2
    assert shape.max_positions is None
    own, yarn = {"max_position_embeddings": 8192}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert ModelShape.of("smollm2", config | own).max_positions == 8192
    assert ModelShape.of("smollm2", config | own | yarn).max_positions is None  # it may reach further
    with pytest.raises(ValueError, match="vocab_size"):
        ModelShape.of("m", {name: value for name, value in config.items() if name != "vocab_size"})


def test_parameters_are_those_of_each_matrix() -> None:
    # Per layer q and o of 8 x 8, k and v of 8 x 4, three of 8 x 16; embeddings of 10 x 8 at both ends.
    layer = 2 * 64 + 2 * 32 + 3 * 128
    shape = ModelShape.of("small", SMALL)
    assert shape == ModelShape(
        name="small",
        parameters=3 * layer + 160,
        num_layers=3,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        element_bytes=2.0,
    )
    assert ModelShape.of("small", {**SMALL, "tie_word_embeddings": True}).parameters == 3 * layer + 80
    odd = ModelShape.of("small", {**SMALL, "head_dim": 5})
    assert odd.parameters == 3 * (layer + 2 * 8 * 1 * 3) + 160
    assert odd.token_bytes == layout_of({**SMALL, "head_dim": 5}, block_size=16, dtype="bfloat16").token_bytes


@pytest.mark.parametrize("name", ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"])
def test_a_mixture_of_experts_is_refused(name: str) -> None:
    assert ModelShape.of("small", {**SMALL, name: 0}) == ModelShape.of("small", {**SMALL, name: None})
    with pytest.raises(ValueError, match=f"config.json of small is not a dense decoder's: it has {name}"):
        ModelShape.of("small", {**SMALL, name: 8})


@pytest.mark.parametrize("name", [*SMALL])
def test_a_config_without_a_size_is_refused_by_its_name(name: str) -> None:
    if name == "num_key_value_heads":
        assert ModelShape.of("small", {**SMALL, name: None}).num_kv_heads == 2
        return
    with pytest.raises(ValueError, match=f"config.json of small: .*{name}"):
        ModelShape.of("small", {**SMALL, name: None})


def test_each_term_of_a_roofline_by_hand() -> None:
    model = ModelShape(
        name="m", parameters=1e9, num_layers=10, num_heads=8, num_kv_heads=2, head_dim=64, element_bytes=4.0
    )
    costs = roofline(
        model, Device(flops=1e14, bandwidth=1e12, efficiency=0.5), link_bytes_per_s=2e9, link_latency_s=0.25
    )
    assert costs.prefill == costs.decode
    memory, arithmetic = costs.decode.lines
    assert model.token_bytes == costs.token_bytes == 2 * 10 * 2 * 64 * 4
    assert (memory.step_s, memory.decode_pair_s) == pytest.approx((4e9 / 0.5e12, costs.token_bytes / 0.5e12))
    assert (memory.prefill_token_s, memory.decode_s, memory.prefill_pair_s) == (0, 0, 0)
    assert arithmetic.prefill_token_s == arithmetic.decode_s == pytest.approx(2e9 / 0.5e14)
    assert arithmetic.prefill_pair_s == arithmetic.decode_pair_s == pytest.approx(4 * 10 * 8 * 64 / 0.5e14)
    assert arithmetic.step_s == 0
    assert (costs.link.bytes_per_s, costs.link.latency_s) == (2e9, 0.25)
    assert costs.about == {"source": "roofline", "model": "m", "flops": 1e14, "bandwidth": 1e12, "efficiency": 0.5}


def test_what_a_host_adds_is_of_the_order_of_a_millisecond() -> None:
    costs = roofline(ModelShape.of("small", SMALL), Device(flops=1e14, bandwidth=1e12), link_bytes_per_s=1e9)
    for seconds in (costs.decode.overhead_s, costs.frame_s, costs.intake_s, costs.link.latency_s):
        assert 0 < seconds <= 2e-3
    assert 0 < costs.intake_token_s <= 1e-5
    assert 0 < Device(flops=1.0, bandwidth=1.0).efficiency <= 1


def test_a_sheet_is_told_in_the_units_of_its_terms() -> None:
    model = ModelShape(name="m", parameters=1e9, num_layers=10, num_heads=8, num_kv_heads=2, head_dim=64)
    costs = roofline(model, Device(flops=1e14, bandwidth=1e12, efficiency=0.5), link_bytes_per_s=2e9)
    steps, link = sheet_lines(costs)
    assert steps.startswith(
        "a step takes the longer of 4.000 ms + 10.240 ns a decode's pair (memory) and 40.00 us a token"
    )
    assert link == "link 0.1 ms + bytes / 2 GB/s; 5120 bytes of KV a token"
